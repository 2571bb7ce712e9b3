//! Types that lie below [`Memory`](crate::Memory), for the tests and tools of this project.

pub use quire_memcg::Memcgs;
pub use quire_space::FlushCause;
pub use quire_swap::Swap;
