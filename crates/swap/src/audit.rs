//! The audit of swap: everything recounted, on a quiet machine.

use crate::cluster::{CLUSTER_SLOTS, NONE};
use crate::devices::{Device, SwapDevices};
use crate::held::{Held, with_cluster};
use crate::lists::ListId;
use crate::slot::{DeviceId, MAX_DEVICES, SlotId};
use quire_arch::{Pfn, Platform};
use quire_frame::FrameFlags;
use quire_sync::atomic::Ordering;

/// A broken invariant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SwapViolation {
    /// A cluster's count of slots in use, or of those in the cache, does not match its words.
    #[error(
        "the cluster at {cluster} counts {} slots in use and {} in the cache, but there are {} and {}",
        .kept.0, .kept.1, .found.0, .found.1
    )]
    ClusterCount {
        /// Its first slot.
        cluster: SlotId,
        /// As counted: in use, in the cache.
        kept: (u32, u32),
        /// As its words say.
        found: (u32, u32),
    },
    /// A cluster is not on a list where it belongs, or has no table, or one that it must not have.
    #[error("the cluster at {cluster} is not where it belongs")]
    Misplaced {
        /// Its first slot.
        cluster: SlotId,
    },
    /// A list has more or fewer clusters than say that they are on it, or is not linked soundly.
    #[error("a list of device {device} counts {kept} clusters, but there are {found}")]
    List {
        /// Whose.
        device: DeviceId,
        /// As the list says.
        kept: u32,
        /// As the clusters say.
        found: u32,
    },
    /// A device's count of slots in use, or of its tables, is wrong.
    #[error("device {device} counts {kept} slots or tables in use, but there are {found}")]
    DeviceCount {
        /// Which.
        device: DeviceId,
        /// As counted.
        kept: u64,
        /// As its clusters say.
        found: u64,
    },
    /// The slot is not needed, but not free.
    #[error("{slot} is in use, but it is not needed")]
    Leaked {
        /// The slot.
        slot: SlotId,
    },
    /// The cache has a page for the slot whose folio does not say so, or not there.
    #[error("the cache has {page:?} for {slot}, but its folio does not say so")]
    Folio {
        /// The slot.
        slot: SlotId,
        /// The page.
        page: Pfn,
    },
    /// A folio is marked as in the cache, but the cache does not have all of its pages.
    #[error("the folio at {head:?} is not in the cache, but says so")]
    NotCached {
        /// Its first frame.
        head: Pfn,
    },
    /// A folio has a mark that is none of its I/O: no device has a request for it.
    #[error("the folio at {head:?} is marked as {marks:?}, but no device has it")]
    Marks {
        /// Its first frame.
        head: Pfn,
        /// The marks.
        marks: FrameFlags,
    },
    /// Another thread still reads the page past the cache.
    #[error("{slot} is read past the cache")]
    Busy {
        /// The slot.
        slot: SlotId,
    },
}

/// A slot in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamedSlot {
    /// Which.
    pub slot: SlotId,
    /// How many entries name it. The slots of a torn cluster are named as often as all of them together by
    /// the first one, and not at all by the rest.
    pub count: u32,
    /// The page that the cache has for it.
    pub page: Option<Pfn>,
    /// Whether names of this slot are counted together with those of the rest of its cluster.
    pub torn: bool,
    /// The memcg that it is charged to.
    pub memcg: u16,
}

quire_arch::part_of! {
    /// The audit of swap.
    pub struct SwapAudit { pub(crate) devices: SwapDevices }
}

impl<P: Platform> SwapAudit<'_, P> {
    /// Calls `visit` with every slot in use. The machine is quiet.
    pub fn for_each_named(self, mut visit: impl FnMut(NamedSlot)) {
        self.each_held(|held| {
            let mut sum = if held.guard.torn { held.guard.sum } else { 0 };
            for place in 0..held.limit() {
                let word = held.guard.word_of(place);
                if !word.is_free() {
                    visit(NamedSlot {
                        slot: held.slot(place),
                        count: word.count() + core::mem::take(&mut sum),
                        page: held.pfn(word),
                        torn: held.guard.torn,
                        memcg: held.memcg(held.guard.unit(place)),
                    });
                }
            }
        });
    }

    /// Whether names of this slot are counted together with those of others
    /// ([`for_each_named`](Self::for_each_named)).
    pub fn is_torn(self, slot: SlotId) -> bool {
        with_cluster(self.devices, slot, |held, _| held.guard.torn).unwrap_or(false)
    }

    /// Recounts everything, and reports what is wrong. The machine is quiet.
    pub fn validate(self, report: &mut dyn FnMut(SwapViolation)) {
        self.each_held(|held| validate(held, report));
        for device in (0..MAX_DEVICES).filter_map(|index| self.devices.use_device(index)) {
            self.validate_device(&device, report);
        }
        for (head, frame) in self.devices.frames().map().iter() {
            let word = frame.word();
            let flags = if word.kind().is_swap_backed() { word.flags() } else { FrameFlags::empty() };
            let mut stale = flags & (FrameFlags::RECLAIM | FrameFlags::ASKED | FrameFlags::COMPLETING);
            if flags.contains(FrameFlags::WRITEBACK) {
                stale -= FrameFlags::RECLAIM | FrameFlags::ASKED;
            }
            if flags.contains(FrameFlags::READING) {
                stale -= FrameFlags::ASKED;
            }
            if !stale.is_empty() {
                report(SwapViolation::Marks { head, marks: stale });
            }
        }
        let is_cached = |word: quire_frame::FrameState| {
            word.kind().is_given_out() && word.flags().contains(FrameFlags::SWAP_CACHE)
        };
        for (head, frame) in self.devices.frames().map().iter().filter(|(_, frame)| is_cached(frame.word())) {
            let slot = SlotId::from_raw(frame.as_folio().slot());
            let has = |nth| {
                let found =
                    with_cluster(self.devices, slot.plus(nth), |held, at| held.pfn(held.guard.word_of(at)));
                found == Some(Some(head.offset(nth)))
            };
            if !(0..frame.word().order().pages()).all(has) {
                report(SwapViolation::NotCached { head });
            }
        }
    }

    fn each_held(self, mut work: impl FnMut(&mut Held<'_, P>)) {
        for device in (0..MAX_DEVICES).filter_map(|index| self.devices.use_device(index)) {
            for index in 0..device.clusters {
                let pin = self.devices.platform().pin();
                work(&mut Held::lock(self.devices, &pin, &device, index));
            }
        }
    }

    fn validate_device(self, device: &Device<P>, report: &mut dyn FnMut(SwapViolation)) {
        let pin = self.devices.platform().pin();
        let (mut used, mut tables) = (0, 0);
        let mut on = [0; ListId::COUNT];
        let mut shadows = 0;
        for index in 0..device.clusters {
            let held = Held::lock(self.devices, &pin, device, index);
            used += u64::from(held.guard.used);
            tables += u64::from(held.guard.table.is_some());
            on[usize::from(device.cluster(index).list())] += 1;
            shadows += u32::from(device.cluster(index).is_listed_for_shadows());
        }
        let counts = [(&device.used, used), (&device.tables, tables)];
        for (kept, found) in counts.map(|(kept, found)| (kept.load(Ordering::Relaxed), found)) {
            if kept != found {
                report(SwapViolation::DeviceCount { device: device.id, kept, found });
            }
        }
        let lists = device.lists.lock();
        let mut check = |kept: u32, found: u32, listed: u32| {
            if kept != found || kept != listed {
                report(SwapViolation::List { device: device.id, kept, found });
            }
        };
        for number in (0..ListId::COUNT as u8).filter(|&number| ListId::of(number).is_list()) {
            let list = lists.list(ListId::of(number));
            let next = |index: u32| device.cluster(index).links.next.load(Ordering::Relaxed);
            check(list.clusters(), on[usize::from(number)], walk(device, list.first(), next));
        }
        let next = |index: u32| device.cluster(index).shadow_links.next.load(Ordering::Relaxed);
        let listed = walk(device, lists.only_shadows.first(), next);
        check(lists.only_shadows.clusters(), shadows, listed);
    }
}

/// Clusters that can be reached on a list; on a damaged one it ends after more than there are.
fn walk<P: Platform>(device: &Device<P>, first: Option<u32>, next: impl Fn(u32) -> u32) -> u32 {
    let links = core::iter::successors(first, |&index| Some(next(index)).filter(|&index| index != NONE));
    links.take(device.clusters as usize + 1).count() as u32
}

/// Checks the cluster and its words.
fn validate<P: Platform>(cluster: &mut Held<'_, P>, report: &mut dyn FnMut(SwapViolation)) {
    let (mut used, mut cached) = (0, 0);
    let limit = cluster.limit();
    cluster.each(0, CLUSTER_SLOTS, |held, unit| {
        let slot = held.slot(unit.first);
        used += if unit.word.is_free() { 0 } else { unit.pages };
        cached += if unit.word.is_cached() { unit.pages } else { 0 };
        if unit.word.is_busy() {
            report(SwapViolation::Busy { slot });
        }
        let lost = !unit.word.is_free() && !unit.word.is_cached() && !held.guard.is_named(unit);
        if lost || (unit.first >= limit && !unit.word.is_free()) {
            report(SwapViolation::Leaked { slot });
        }
        let uncounted = held.guard.torn || held.guard.sum == 0;
        if !uncounted || (held.guard.torn && unit.word.count() > 0) {
            report(SwapViolation::Misplaced { cluster: slot });
        }
        let pages = if unit.word.is_cached() { unit.pages } else { 0 };
        for nth in 0..pages {
            let place = unit.first + nth;
            let Some(page) = held.pfn(held.guard.word_of(place)) else { continue };
            let folio = held.devices.frames().folio(page);
            let first = SlotId::from_raw(folio.frame().as_folio().slot());
            let known = folio.frame().word().flags().contains(FrameFlags::SWAP_CACHE)
                && folio.frame().refs() > 0
                && first.plus(page.0 - folio.head().0) == held.slot(place);
            if !known {
                report(SwapViolation::Folio { slot: held.slot(place), page });
            }
        }
    });
    let first = cluster.slot(0);
    let (kept, found) = ((u32::from(cluster.guard.used), u32::from(cluster.guard.cached)), (used, cached));
    if kept != found {
        report(SwapViolation::ClusterCount { cluster: first, kept, found });
    }
    let fits = match ListId::of(cluster.device.cluster(cluster.index).list()) {
        ListId::Free | ListId::Discard | ListId::Discarding => used == 0 && cluster.guard.table.is_none(),
        ListId::Full => used == limit,
        ListId::Frag => 0 < used && used < limit,
        ListId::Nonfull(order) => 0 < used && used < limit && order == cluster.guard.order,
        ListId::Taken => true,
    };
    let torn = cluster.guard.torn && cluster.guard.sum == 0;
    let lazy = cluster.devices.technique().lazy_bookkeeping();
    let shadows = !lazy && used > 0 && cached == 0;
    if !fits || torn || shadows != cluster.device.cluster(cluster.index).is_listed_for_shadows() {
        report(SwapViolation::Misplaced { cluster: first });
    }
}
