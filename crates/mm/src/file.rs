//! Files: mapped, read, written, truncated.
//!
//! [`Memory::create_file`](crate::Memory::create_file) makes a [`File`] of a [`FileBacking`], which is the
//! embedder's: where the bytes are when they are not in RAM.
//! [`Space::mmap_file`](crate::space::Space::mmap_file) maps it. Pages are in one cache for all mappings and
//! for calls that read and write. Names, permissions and open flags are the embedder's.

/// For the project's own tests and tools: `/proc/meminfo` has them.
#[doc(hidden)]
pub use quire_file::FileTotals;
#[doc(inline)]
pub use quire_file::{
    Busy, FileError, FileFigures, FileIo, IoLimits, IoToken, PageBytes, PageError, Seals, ShmemOwner,
    Transfer, Transferred, UserCopy, Wait,
};
/// For those who make file systems in memory: `quire-tmpfs` has them.
#[doc(hidden)]
pub use quire_file::{ShmemEnabled, Writing};
/// For the project's own tools: [`HugeFile`](crate::proc::HugeFile) reads and writes what it holds.
#[doc(hidden)]
pub use quire_file::{ShmemHuge, ShmemSizeEnabled};
#[doc(inline)]
pub use quire_space::{File, SpaceFiles};

/// Of [`swap`](crate::swap), which lists them.
#[doc(hidden)]
pub use quire_swap::{DeviceMemory, Direction, Submitted};

#[doc(inline)]
pub use quire_file::FileBacking;
