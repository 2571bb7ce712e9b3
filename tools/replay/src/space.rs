//! The address spaces of a replay.

use quire_host::HostPlatform;
use quire_mm::space::Space;

/// An address space on the machine of a replay.
pub(crate) type HostSpace<'m> = Space<'m, HostPlatform>;
