//! The parameters of an allocation.

use crate::fail_points::FailSite;
use crate::kind::Kind;
use crate::map::Migratetype;
use crate::zone_id::ZoneKind;
use quire_arch::Order;

/// Whether a block is filled with zeros, and for whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Zero {
    /// It is uninitialised.
    No,
    /// Zeroed; the memory management reads it.
    Kernel,
    /// Zeroed; only programs read it ([`Platform::zero_user`](quire_arch::Platform::zero_user)).
    User,
}

/// A request for one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocRequest {
    pub(crate) order: Order,
    pub(crate) migratetype: Migratetype,
    pub(crate) zero: Zero,
    pub(crate) kind: Kind,
    pub(crate) site: FailSite,
    pub(crate) highest_zone: ZoneKind,
    pub(crate) may_drain: bool,
    pub(crate) atomic: bool,
    pub(crate) below_min: bool,
}

impl AllocRequest {
    /// A block of `order`, unmovable, uninitialised, from any zone.
    #[inline]
    pub const fn new(order: Order, site: FailSite) -> Self {
        Self {
            order,
            migratetype: Migratetype::Unmovable,
            zero: Zero::No,
            kind: Kind::Allocated,
            site,
            highest_zone: ZoneKind::Normal,
            may_drain: true,
            atomic: false,
            below_min: false,
        }
    }

    /// A page table: one frame of zeros.
    #[inline]
    pub const fn table() -> Self {
        Self::new(Order::ZERO, FailSite::TABLE).zeroed()
    }

    /// A page of a program: one movable frame of zeros.
    #[inline]
    pub const fn anonymous() -> Self {
        let mut request = Self::new(Order::ZERO, FailSite::ANONYMOUS).movability(Migratetype::Movable);
        request.zero = Zero::User;
        request
    }

    /// A block for a slab cache.
    #[inline]
    pub const fn slab(order: Order) -> Self {
        Self::new(order, FailSite::SLAB)
    }

    /// Filled with zeros, for programs only, as an anonymous page is.
    #[inline]
    pub const fn zeroed_for_programs(mut self) -> Self {
        self.zero = Zero::User;
        self
    }

    /// Filled with zeros.
    #[inline]
    pub const fn zeroed(mut self) -> Self {
        self.zero = Zero::Kernel;
        self
    }

    /// Uninitialised.
    #[inline]
    pub const fn uninitialised(mut self) -> Self {
        self.zero = Zero::No;
        self
    }

    /// Classified as `kind` from the start, which saves [`classify`](crate::Frame::classify) later. A kind
    /// that no user may set is taken as [`Kind::Allocated`].
    #[inline]
    pub const fn kind(mut self, kind: Kind) -> Self {
        self.kind = if kind.is_for_users() { kind } else { Kind::Allocated };
        self
    }

    /// With another order.
    #[inline]
    pub const fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// For contents of another mobility. A type that only page blocks have is taken as
    /// [`Migratetype::Unmovable`].
    #[inline]
    pub const fn movability(mut self, migratetype: Migratetype) -> Self {
        self.migratetype = if migratetype.is_pcp_type() { migratetype } else { Migratetype::Unmovable };
        self
    }

    /// For callers that cannot wait and for which failure is costly, e.g. in an interrupt: may go deeper
    /// below the `min` watermark, and into the high-order atomic reserve: failing now is worse than that a
    /// larger request may fail later.
    #[inline]
    pub const fn atomic(mut self) -> Self {
        self.atomic = true;
        self
    }

    /// Whether the high-order atomic reserve is kept for requests like this one.
    #[inline]
    pub(crate) const fn has_reserve(&self) -> bool {
        self.atomic && self.order.get() > 0
    }

    /// With another site, for fail plans.
    #[inline]
    pub const fn site(mut self, site: FailSite) -> Self {
        self.site = site;
        self
    }

    /// From `zone` or a lower one.
    #[inline]
    pub const fn from_zone(mut self, zone: ZoneKind) -> Self {
        self.highest_zone = zone;
        self
    }

    /// Fails at once where nothing is free on the lists: for callers that hold a lock of class
    /// [`LockClass::Slab`](quire_arch::LockClass::Slab) or later, or that have something cheaper to fall back
    /// on.
    #[inline]
    pub const fn without_drain(mut self) -> Self {
        self.may_drain = false;
        self
    }

    /// May take the zone below its `min` watermark: for reclaim itself, which frees more than it takes.
    #[inline]
    pub const fn below_min(mut self) -> Self {
        self.below_min = true;
        self
    }
}
