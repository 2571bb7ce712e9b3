//! The auditor: recounts lists and charges.

use crate::charge::MemcgCharges;
use crate::counters::MemcgCounters;
use crate::id::MemcgId;
use crate::lists::{Label, ListPlace, LruList};
use crate::memcg::Memcg;
use crate::stat::MemcgStat;
use crate::tagged::TaggedAmount;
use crate::tree::MemcgTree;
use core::fmt;
use quire_arch::{CpuId, NodeId, Pfn, Platform};
use quire_frame::{FolioList, FrameFlags};
use quire_sync::atomic::Ordering;

/// What memcgs count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Belonging {
    /// Pages in memory.
    Pages,
    /// Of these, pages of files.
    FilePages,
    /// Of these, pages of shared memory.
    ShmemPages,
    /// Pages of folios of the PMD's order of files, without shared memory.
    FileThpPages,
    /// The same of shared memory.
    ShmemThpPages,
    /// Slots of swap devices.
    Slots,
    /// Address spaces.
    Spaces,
    /// Of these, spaces of killed programs.
    KilledSpaces,
}

impl fmt::Display for Belonging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pages => "pages",
            Self::FilePages => "pages of files",
            Self::ShmemPages => "pages of shared memory",
            Self::FileThpPages => "pages of files in PMD-sized folios",
            Self::ShmemThpPages => "pages of shared memory in PMD-sized folios",
            Self::Slots => "slots",
            Self::Spaces => "spaces",
            Self::KilledSpaces => "spaces of killed programs",
        })
    }
}

/// A broken invariant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemcgViolation {
    /// A folio is on a list and its descriptor disagrees: it names no list, another list, or another memcg or
    /// node.
    #[error("{pfn:?} is on a list that it does not say")]
    WrongLabel {
        /// Its first frame.
        pfn: Pfn,
    },
    /// A folio's descriptor says that it is on a list, and it is on none, or on two.
    #[error("{pfn:?} says that it is listed and is on {lists} lists")]
    Lost {
        /// Its first frame.
        pfn: Pfn,
        /// Lists that it is on.
        lists: u32,
    },
    /// A list's page count is wrong.
    #[error("{} of memcg {memcg}, node {node}: {kept} pages are kept, {counted} counted", .list.name())]
    WrongSize {
        /// The memcg.
        memcg: MemcgId,
        /// The node.
        node: NodeId,
        /// The list.
        list: LruList,
        /// As kept.
        kept: u64,
        /// As counted.
        counted: u64,
    },
    /// More is charged to a memcg's children than to the memcg.
    #[error("memcg {memcg} is charged {usage} pages, with {below} below it")]
    Charges {
        /// The memcg.
        memcg: MemcgId,
        /// Pages of its own charge.
        usage: u64,
        /// Pages that are charged to its children or in stock.
        below: u64,
    },
    /// The same of swap.
    #[error("memcg {memcg} is charged {usage} pages of swap, with {below} below it")]
    SwapCharges {
        /// The memcg.
        memcg: MemcgId,
        /// Pages of its own charge of swap.
        usage: u64,
        /// Pages of swap that are charged to its children.
        below: u64,
    },
    /// A memcg's count differs from what belongs to it.
    #[error("memcg {memcg} counts {kept} {what}, and {found} belong to it")]
    Count {
        /// The memcg.
        memcg: MemcgId,
        /// Which count.
        what: Belonging,
        /// As counted by the memcg, without what is below it.
        kept: u64,
        /// As found.
        found: u64,
    },
    /// Something is charged to a memcg that does not exist.
    #[error("{what} belong to {memcg}, which is no memcg")]
    Orphan {
        /// The missing memcg.
        memcg: MemcgId,
        /// Its kind.
        what: Belonging,
    },
    /// A CPU holds back an amount for a memcg that does not exist.
    #[error("a CPU holds something back for {memcg}, which is none")]
    Stray {
        /// The missing memcg.
        memcg: MemcgId,
    },
}

quire_arch::part_of! {
    /// The audit of memcgs.
    pub struct MemcgAudit { pub(crate) tree: MemcgTree }
}

impl<P: Platform> MemcgAudit<'_, P> {
    /// Calls `visit` with the first frame of every listed folio: its memcg, and its list or the one that it
    /// is on its way to. Under the lists' locks: it must not touch them.
    pub fn for_each_listed(self, mut visit: impl FnMut(Pfn, MemcgId, LruList)) {
        let map = self.tree.frames.map();
        let pin = self.tree.frames.platform().pin();
        self.tree.for_each_in_subtree(MemcgId::ROOT, |id| {
            for lists in self.tree.table.get(id).into_iter().flat_map(Memcg::all_lists) {
                let folios = lists.lock();
                for (&list, folios) in LruList::ALL.iter().zip(folios.iter()) {
                    folios.iter(map).for_each(|head| visit(head, id, list));
                }
            }
        });
        for incoming in self.tree.incoming.iter() {
            for head in incoming.lock().folios.iter(map) {
                let frame = map.known(head);
                let memcg = MemcgId::from_bits(frame.as_folio().memcg());
                visit(head, memcg, Label::of(frame).list());
            }
        }
        drop(pin);
    }

    /// Checks that lists, labels and charges agree. The machine is quiet. Frames' scratch words are zero
    /// afterwards.
    pub fn validate(self, report: &mut dyn FnMut(MemcgViolation)) {
        self.tree.frames.audit().clear_audit();
        self.audit_lists(report);
        self.tree.frames.audit().for_each_frame(|pfn, frame| {
            let listed = frame.kind().is_given_out() && frame.word().flags().contains(FrameFlags::LRU);
            let lists = frame.audit().load(Ordering::Relaxed);
            if lists != u32::from(listed) {
                report(MemcgViolation::Lost { pfn, lists });
            }
        });
        self.tree.frames.audit().clear_audit();
        self.tree.for_each_in_subtree(MemcgId::ROOT, |id| self.audit_charges(id, report));
        for cells in self.tree.cpus.iter() {
            for (memcg, amount) in core::iter::once(&cells.stock).chain(&cells.stats).map(TaggedAmount::get) {
                let there = self.tree.table.get(memcg).is_some_and(|memcg| memcg.life.is_there());
                if amount != 0 && !there {
                    report(MemcgViolation::Stray { memcg });
                }
            }
            // The root is never charged.
            if let (MemcgId::ROOT, 1..) = cells.stock.get() {
                report(MemcgViolation::Stray { memcg: MemcgId::ROOT });
            }
        }
    }

    /// Compares the memcgs' counts with a recount: `tell` calls its argument with the memcg and the number of
    /// each item. The machine is quiet.
    pub fn recount(
        self,
        what: Belonging,
        tell: impl FnOnce(&mut dyn FnMut(MemcgId, u64)),
        report: &mut dyn FnMut(MemcgViolation),
    ) {
        tell(&mut |id, many| {
            if id.is_root() {
                return;
            }
            match self.tree.table.get(id).filter(|memcg| memcg.life.is_there()) {
                Some(memcg) => {
                    memcg.recounted.fetch_add(many, Ordering::Relaxed);
                }
                None => report(MemcgViolation::Orphan { memcg: id, what }),
            }
        });
        self.tree.for_each_in_subtree(MemcgId::ROOT, |id| {
            let Some(memcg) = self.tree.table.get(id).filter(|_| !id.is_root()) else { return };
            let found = memcg.recounted.swap(0, Ordering::Relaxed);
            // One that has wrapped is shown as it is.
            let stat = |stat| MemcgCounters::new(self.tree).own_stat(id, stat) as u64;
            let kept = match what {
                Belonging::Pages => MemcgCharges::new(self.tree).charged(id),
                Belonging::FilePages => stat(MemcgStat::File),
                Belonging::ShmemPages => stat(MemcgStat::Shmem),
                Belonging::FileThpPages => stat(MemcgStat::FileThp),
                Belonging::ShmemThpPages => stat(MemcgStat::ShmemThp),
                Belonging::Slots => {
                    MemcgCounters::new(self.tree).own(id, |memcg| memcg.swap.usage() as i64).max(0) as u64
                }
                Belonging::Spaces => memcg.life.spaces().into(),
                Belonging::KilledSpaces => MemcgCounters::new(self.tree)
                    .own(id, |memcg| memcg.killed.load(Ordering::Relaxed).into())
                    as u64,
            };
            if kept != found {
                report(MemcgViolation::Count { memcg: id, what, kept, found });
            }
        });
    }

    fn audit_lists(self, report: &mut dyn FnMut(MemcgViolation)) {
        self.tree.for_each_in_subtree(MemcgId::ROOT, |id| {
            let Some(memcg) = self.tree.table.get(id) else { return };
            for node in (0..self.tree.frames.platform().node_count()).filter_map(NodeId::new) {
                let Some(lists) = memcg.lists(node) else { continue };
                let _pin = self.tree.frames.platform().pin();
                let folios = lists.lock();
                for (&list, folios) in LruList::ALL.iter().zip(folios.iter()) {
                    let counted = self.audit_list(folios, report, |pfn, label| {
                        let frame = self.tree.frames.known(pfn);
                        let memcg = MemcgId::from_bits(frame.as_folio().memcg());
                        label.place() == ListPlace::Main
                            && (label.list(), memcg, frame.zone().node()) == (list, id, node)
                    });
                    let kept = lists.sizes()[list as usize];
                    if kept != counted {
                        report(MemcgViolation::WrongSize { memcg: id, node, list, kept, counted });
                    }
                }
            }
        });
        for (cpu, incoming) in self.tree.incoming.iter().enumerate() {
            let _pin = self.tree.frames.platform().pin();
            let incoming = incoming.lock();
            let place = CpuId::new(cpu).map(ListPlace::Incoming);
            self.audit_list(&incoming.folios, report, |_, label| Some(label.place()) == place);
        }
    }

    /// Marks what is on a list, and returns how many pages that is.
    fn audit_list(
        self,
        folios: &FolioList,
        report: &mut dyn FnMut(MemcgViolation),
        is_right: impl Fn(Pfn, Label) -> bool,
    ) -> u64 {
        let mut pages = 0;
        for pfn in folios.iter(self.tree.frames.map()) {
            let frame = self.tree.frames.known(pfn);
            frame.audit().fetch_add(1, Ordering::Relaxed);
            let (word, label) = (frame.word(), Label::of(frame));
            let active = matches!(label.list(), LruList::ActiveAnon | LruList::ActiveFile);
            let flags = word.flags();
            let said = flags.contains(FrameFlags::LRU)
                && label.list().for_flags(flags) == label.list()
                && flags.contains(FrameFlags::ACTIVE) == active
                && flags.contains(FrameFlags::UNEVICTABLE) == (label.list() == LruList::Unevictable);
            if !said || word.order() != label.order() || !is_right(pfn, label) {
                report(MemcgViolation::WrongLabel { pfn });
            }
            pages += word.order().pages();
        }
        pages
    }

    fn audit_charges(self, id: MemcgId, report: &mut dyn FnMut(MemcgViolation)) {
        let Some(memcg) = self.tree.table.get(id).filter(|_| !id.is_root()) else { return };
        let (mut memory, mut swap) = (MemcgCharges::new(self.tree).stocked(id), 0);
        {
            let _pin = self.tree.frames.platform().pin();
            let _registry = self.tree.registry.lock();
            for child in self.tree.children(memcg) {
                memory += child.memory.usage();
                swap += child.swap.usage();
            }
        }
        if memcg.memory.usage() < memory {
            report(MemcgViolation::Charges { memcg: id, usage: memcg.memory.usage(), below: memory });
        }
        if memcg.swap.usage() < swap {
            report(MemcgViolation::SwapCharges { memcg: id, usage: memcg.swap.usage(), below: swap });
        }
    }
}
