//! Tests of whole tokenizers: recorded answers, untrusted text and streams.

#[cfg(test)]
mod common;
#[cfg(test)]
mod families;
#[cfg(test)]
mod gguf;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod identity;
#[cfg(test)]
mod literal;
#[cfg(test)]
mod mixed;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod stream;
