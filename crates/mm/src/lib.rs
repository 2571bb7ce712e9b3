//! The memory management of a Linux-class kernel as a library: page frames, address spaces, page faults, the
//! memory system calls, large folios, swap and memory groups, with Linux's results.
//!
//! An operating system, a hypervisor or a sandbox implements [`Platform`](platform::Platform) for its machine
//! and gives it to [`Memory::new`]. [`Memory`] takes over the machine's RAM and hands out [address
//! spaces](space::Space). It uses neither std nor an allocator; many can live in one process. The crate
//! quire-host is a whole machine in a process, to try this on:
//!
//! ```
//! use quire_host::{HostConfig, Machine};
//! use quire_mm::MemoryConfig;
//! use quire_mm::space::{MapRequest, Protection};
//! use quire_mm::swap::SwapOnOptions;
//!
//! // 64 MiB of RAM and one CPU, which this thread is now.
//! let machine: Machine = Machine::new(&HostConfig::with_ram(64 << 20), MemoryConfig::default())?;
//! let cpu = machine.vcpu(0)?;
//! let memory = machine.memory();
//!
//! // Swap: compressed pages in the machine's own RAM, as zram keeps them.
//! memory.swapon(memory.create_compressed_ram(8192)?, SwapOnOptions::default())?;
//!
//! // A program maps a mebibyte and writes to it: a TLB miss, a walk, a page fault, and the walk again.
//! let space = memory.create_space()?;
//! let addr = space.mmap(&MapRequest::anonymous(1 << 20, Protection::READ | Protection::WRITE))?;
//! cpu.program(&space).write_u64(addr, 42)?;
//!
//! // Its child has the page after the parent has unmapped it.
//! let child = space.fork()?;
//! space.munmap(addr, 1 << 20)?;
//! assert_eq!(cpu.program(&child).read_u64(addr)?, 42);
//!
//! // Every frame, table, count and TLB entry is as it must be.
//! assert!(machine.audit().is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! See also: [`platform`] to port to a machine, [`space`] for the calls, [`swap`] and [`memcg`] for memory
//! shortage, [`file`](mod@file) for files, [`shm`] for SysV shared memory, [`frame`] for frames and a heap
//! for the kernel itself, [`proc`] for texts that tools read, [`abi`] for system calls by number.
//! [`Techniques`] chooses between old and new strategies.
//!
//! The feature `internals` is for the project's own tests and tools: the functions that it exposes trust
//! their callers.
//!
//! # Modules, lowest first
//!
//! - `platform`: the interface to hardware.
//! - `internals`: types that lie below, for the project's own tests and tools.
//! - `frame`: page frames, and the heap on them.
//! - `memcg`: memory control groups.
//! - `thp`: large folios.
//! - `space`: address spaces.
//! - `file`: files that are mapped, read and written.
//! - `shm`: SysV shared memory.
//! - `swap`: swap devices and background reclaim.
//! - `abi`: Linux's memory calls as a program makes them: numbers in, a number out.
//! - `techniques`: which techniques a machine runs with.
//! - `memory`: all of a machine's memory, and its auditor.
//! - `proc`: texts in the format of Linux's `/proc` and debugfs, as tools read them.

#![no_std]

pub mod abi;
pub mod file;
pub mod frame;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
pub mod memcg;
mod memory;
pub mod platform;
pub mod proc;
pub mod shm;
pub mod space;
pub mod swap;
mod techniques;
pub mod thp;

pub use memory::{AuditSummary, BuildError, Memory, MemoryConfig, Violation};
pub use techniques::Techniques;

/// For the project's own tests and tools.
#[doc(hidden)]
pub use memory::InUse;
#[doc(hidden)]
pub use techniques::TechniqueError;
