//! The rmap: from a page of private memory to the mappings that can show it.
//!
//! Every VMA that has private pages belongs to a [`Group`]. The groups of a process and of its children form a tree, a
//! *family*. A page names the group that it was faulted in for, and only VMAs of that group and of the groups below it
//! can map it: `fork` gives the VMAs of the child a group below the parent's. One sleeping lock a family, in the root,
//! orders everything: whoever puts a VMA in, takes one out or changes one holds it alone, whoever walks holds it shared.
//!
//! A VMA leaves its group before its tables go, so that a walker may rely on the tables of the VMAs that it meets. The
//! group itself stays until the pages are out of the tables ([`Emptied`]). So a page that is mapped names a group that
//! is not freed; that is what a walker, which finds the page before it holds any lock, goes by ([`walk`]).

mod audit;
mod family;
mod group;
mod walk;

pub(crate) use audit::GroupAudit;
pub use audit::GroupViolation;
pub(crate) use family::{Branch, Emptied, Family};
pub(crate) use group::{Group, Membership};
pub(crate) use walk::{HeldMappings, set_owner, set_owner_to_root};
