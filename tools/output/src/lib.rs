//! What the tools write: files that are whole or not there, and files for the time of a command.
//!
//! # Modules, lowest first
//!
//! - `error`: why a file was not written.
//! - `whole`: a file that gets its name when it is complete.
//! - `temporary`: files for the time of a command.

mod error;
mod temporary;
mod whole;

pub use error::FileError;
pub use temporary::temporary_file;
pub use whole::{Kind, Meanwhile, WholeFile};
