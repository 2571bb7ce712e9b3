//! What `/proc` says of a process.

pub(crate) mod files;
pub(crate) mod maps;
pub(crate) mod pagemap;
pub(crate) mod status;
pub(crate) mod system;
pub(crate) mod trial;
