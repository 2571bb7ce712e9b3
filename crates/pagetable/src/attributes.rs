//! What a mapping says of its pages.

use quire_arch::LeafFlags;
use quire_frame::{Frame, FrameFlags, Kind, OwnerWord};

/// The permissions of a mapping's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Permissions {
    /// The permissions of a leaf whose page need not be copied first.
    pub leaf: LeafFlags,
    /// Whether the mapping is shared: pages are not copied.
    pub shared: bool,
}

/// The mapping's attributes for a page that is about to be mapped.
#[derive(Clone, Copy, Debug)]
pub struct NewPage {
    /// The permissions of its leaf.
    pub leaf: LeafFlags,
    /// Its page offset in the mapped object.
    pub index: u64,
    /// The anon_vma that owns it, if it is anonymous.
    pub owner: OwnerWord,
    /// Whether the mapping is mlocked.
    pub locked: bool,
}

impl NewPage {
    /// Sets up the descriptor of a page that is about to be mapped once.
    #[inline]
    pub fn init_page(&self, frame: &Frame) {
        let folio = frame.as_folio();
        folio.set_index(self.index);
        folio.set_owner(if frame.kind() == Kind::Anonymous { self.owner } else { OwnerWord::NONE });
        // After the owner: a walker of the rmap that sees that the page is mapped sees its owner.
        folio.set_maps(1);
    }

    /// The same for a new large folio that begins with `frame` and is about to be mapped from here on,
    /// `pages` of it, by one space.
    pub fn init_folio(&self, frame: &Frame, pages: u32) {
        let folio = frame.as_folio();
        folio.set_index(self.index);
        folio.set_owner(self.owner);
        folio.set_whole_maps(0);
        frame.set_flags(FrameFlags::ANONYMOUS_EXCLUSIVE);
        // After the owner: a walker of the rmap that sees that the folio is mapped sees its owner.
        folio.set_maps(pages);
    }
}
