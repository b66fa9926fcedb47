//! The tokenizers as a whole: recorded answers, untrusted text, streams.

#[cfg(test)]
mod common;
#[cfg(test)]
mod literal;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod stream;
