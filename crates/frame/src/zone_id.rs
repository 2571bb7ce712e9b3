//! Zone identifiers.

use core::fmt;
use quire_arch::{MAX_NODES, NodeId, PAGE_SHIFT, Pfn};

/// Which frames of a node a zone holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum ZoneKind {
    /// Frames below 4 GiB, for devices with 32 address bits.
    #[default]
    Dma32 = 0,
    /// All others.
    Normal = 1,
}

impl ZoneKind {
    /// Number of kinds.
    pub const COUNT: usize = 2;
    /// Every kind, lowest first.
    pub const ALL: [Self; Self::COUNT] = [Self::Dma32, Self::Normal];

    /// First frame past [`ZoneKind::Dma32`].
    pub(crate) const DMA32_END: Pfn = Pfn(1 << (32 - PAGE_SHIFT));

    /// The kind of zone that `pfn` belongs to.
    #[inline]
    pub const fn of(pfn: Pfn) -> Self {
        if pfn.0 < Self::DMA32_END.0 { Self::Dma32 } else { Self::Normal }
    }

    /// The kind as an index into per-kind arrays.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Name as in Linux's zoneinfo.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dma32 => "DMA32",
            Self::Normal => "Normal",
        }
    }
}

impl fmt::Display for ZoneKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A zone: a kind of frames of one node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ZoneId(u8);

const _: () = assert!(ZoneId::COUNT <= u8::MAX as usize);

impl ZoneId {
    /// Zones that a machine can have.
    pub(crate) const COUNT: usize = MAX_NODES * ZoneKind::COUNT;

    /// The zone of `kind` of `node`.
    #[inline]
    pub const fn new(node: NodeId, kind: ZoneKind) -> Self {
        Self((node.index() * ZoneKind::COUNT + kind.index()) as u8)
    }

    /// The zone of a frame of `node`.
    #[inline]
    pub(crate) const fn of(node: NodeId, pfn: Pfn) -> Self {
        Self::new(node, ZoneKind::of(pfn))
    }

    /// The zone at `index`, if a machine can have so many.
    pub(crate) fn from_index(index: usize) -> Option<Self> {
        (index < Self::COUNT).then_some(Self(index as u8))
    }

    /// The zone's place among all zones.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// Its node.
    #[inline]
    pub const fn node(self) -> NodeId {
        // Only `new` and `from_index` make zones, from nodes that there can be.
        match NodeId::new(self.0 as usize / ZoneKind::COUNT) {
            Some(node) => node,
            None => NodeId::FIRST,
        }
    }

    /// Its kind.
    #[inline]
    pub const fn kind(self) -> ZoneKind {
        if (self.0 as usize).is_multiple_of(ZoneKind::COUNT) { ZoneKind::Dma32 } else { ZoneKind::Normal }
    }
}

impl From<ZoneKind> for ZoneId {
    /// The zone of this kind of the first node.
    fn from(kind: ZoneKind) -> Self {
        Self::new(NodeId::FIRST, kind)
    }
}

impl fmt::Display for ZoneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.node() != NodeId::FIRST {
            write!(f, "node {} ", self.node())?;
        }
        fmt::Display::fmt(&self.kind(), f)
    }
}
