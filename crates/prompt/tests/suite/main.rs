//! Tests of templates against recorded answers, of hostile messages, and of replies cut in every way.

#[cfg(test)]
mod families;
#[cfg(test)]
mod generated_tools;
#[cfg(test)]
mod grammar;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod jinja2;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod parts;
#[cfg(test)]
mod places;
#[cfg(test)]
mod published;
#[cfg(test)]
mod replies;
#[cfg(test)]
mod sglang;
#[cfg(test)]
mod support;
