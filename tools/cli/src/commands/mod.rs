//! The commands, one a file.

pub(crate) mod advise;
pub(crate) mod calibrate;
pub(crate) mod diff;
pub(crate) mod import;
pub(crate) mod lab;
pub(crate) mod record;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod scratch;
pub(crate) mod tour;
pub(crate) mod trace;
