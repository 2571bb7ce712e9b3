//! Why a trace could not be replayed.

use crate::swap::SwapError;
use quire_host::{HostError, MachineError};
use quire_mm::memcg::MemcgError;
use quire_trace::format::TraceError;
use std::path::PathBuf;
use thiserror::Error;

/// Why a trace could not be replayed. What the program did differently is no error but part of the report.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The file is wrong.
    #[error("{0}")]
    Trace(TraceError),
    /// Of a damaged file no event could be salvaged: which file, and what is wrong with it.
    #[error("{}: nothing could be salvaged: {_1}", _0.display())]
    NothingSalvaged(PathBuf, String),
    /// An event says what no program can have: which file, the number of the event, and what.
    #[error("{}: event {_1}: {_2}; no recorder wrote that", _0.display())]
    Impossible(PathBuf, u64, &'static str),
    /// The machine could not be built.
    #[error("the machine could not be built: {0}")]
    Machine(MachineError),
    /// A CPU of a machine that was just built is taken.
    #[error("vCPU {0} could not be claimed")]
    Cpu(usize),
    /// The programs got no memcg of their own.
    #[error("no memcg for the programs: {0}")]
    Memcg(MemcgError),
    /// The machine got no swap.
    #[error("{0}")]
    Swap(SwapError),
}

impl ReplayError {
    /// Whether this host has too little memory, and another one may have enough.
    #[must_use]
    pub fn is_of_host_memory(&self) -> bool {
        matches!(self, Self::Machine(MachineError::Host(HostError::HostMemory { .. })))
    }
}

impl From<TraceError> for ReplayError {
    fn from(error: TraceError) -> Self {
        Self::Trace(error)
    }
}
