//! The rmap: from a page of private memory to the mappings that can show it.
//!
//! Every VMA that has private pages belongs to an [`AnonVma`]. The anon_vmas of a process and of its children
//! form a tree. A page names the anon_vma that it was faulted in for, and only VMAs of that anon_vma and of
//! those below it can map it: `fork` gives the VMAs of the child an anon_vma below the parent's. One sleeping
//! lock in the root (Linux's `anon_vma->root->rwsem`) orders everything: it is held exclusively to link,
//! unlink or change a VMA, and shared by a walk.
//!
//! A VMA leaves its anon_vma before its tables are freed, so that a walker may rely on the tables of the VMAs
//! that it meets. The anon_vma itself stays until the pages are out of the tables ([`Emptied`]). So a page
//! that is mapped names an anon_vma that is not freed. A walker, which finds the page before it holds any
//! lock, relies on that ([`walk`]).

mod anon_vma;
mod anon_vma_tree;
mod audit;
mod walk;

pub(crate) use anon_vma::{AnonVma, Membership};
pub(crate) use anon_vma_tree::{AnonVmaTree, Branch, Emptied};
pub(crate) use audit::AnonVmaAudit;
pub use audit::AnonVmaViolation;
pub(crate) use walk::{HeldMappings, set_owner, set_owner_to_root};
