//! What is printed.

pub(crate) mod json;
pub(crate) mod progress;
pub(crate) mod table;
