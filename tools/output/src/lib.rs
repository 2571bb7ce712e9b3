//! What the tools write: text that is safe on a terminal, files that are whole or not there, and files for
//! the time of a command.
//!
//! # Modules, lowest first
//!
//! - `text`: text of others, without what a terminal obeys.
//! - `error`: why a file was not written.
//! - `place`: what is at the place of a file that is to be written.
//! - `whole`: a file that gets its name when it is complete.
//! - `temporary`: files for the time of a command.

mod error;
mod place;
mod temporary;
mod text;
mod whole;

pub use error::FileError;
pub use place::Kind;
pub use temporary::temporary_file;
pub use text::{Manner, Printed, Shown};
pub use whole::{Meanwhile, WholeFile};
