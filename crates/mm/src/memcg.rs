//! Memory control groups.
//!
//! A memcg is made by [`Memory::create_memcg`](crate::Memory::create_memcg) and entered by
//! [`Space::set_memcg`](crate::space::Space::set_memcg). Its files have Linux's names:
//! [`Memory::write_memcg_file`](crate::Memory::write_memcg_file) sets limits,
//! [`memcg_file`](crate::proc::memcg_file) reads usage and statistics.

#[doc(inline)]
pub use quire_memcg::{MemcgError, MemcgId, MemcgPeak};

/// For the project's own tests and tools.
#[doc(hidden)]
pub use quire_memcg::{Belonging, Limit, LruList, MemcgEvent, MemcgStat, MemcgViolation};
