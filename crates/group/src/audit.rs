//! The auditor: recounts lists and charges.

use crate::Groups;
use crate::group::Group;
use crate::id::GroupId;
use crate::lists::{Label, LruList, Place};
use crate::tagged::TaggedAmount;
use core::fmt;
use quire_arch::{CpuId, NodeId, Pfn, Platform};
use quire_frame::{FolioList, FrameFlags};
use quire_sync::atomic::Ordering;

/// What belongs to groups and is counted by them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Belonging {
    /// Pages in memory.
    Pages,
    /// Slots of swap devices.
    Slots,
    /// Address spaces.
    Spaces,
}

impl fmt::Display for Belonging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pages => "pages",
            Self::Slots => "slots",
            Self::Spaces => "spaces",
        })
    }
}

/// Something that cannot be on a sound machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupViolation {
    /// A folio is on a list and its descriptor says otherwise: that it is on none, on another one, or of another group or
    /// node.
    WrongLabel {
        /// Its first frame.
        pfn: Pfn,
    },
    /// A folio's descriptor says that it is on a list, and it is on none, or on two.
    Lost {
        /// Its first frame.
        pfn: Pfn,
        /// Lists that it is on.
        lists: u32,
    },
    /// A list says that it has another number of pages than it has.
    WrongSize {
        /// The group.
        group: GroupId,
        /// The node.
        node: NodeId,
        /// The list.
        list: LruList,
        /// As kept.
        kept: u64,
        /// As counted.
        counted: u64,
    },
    /// More is charged below a group than to it.
    Charges {
        /// The group.
        group: GroupId,
        /// Pages of its own charge.
        usage: u64,
        /// Pages that are charged to its children or in stock.
        below: u64,
    },
    /// The same of swap.
    SwapCharges {
        /// The group.
        group: GroupId,
        /// As above.
        usage: u64,
        /// As above.
        below: u64,
    },
    /// More or less belongs to a group than it counts.
    Count {
        /// The group.
        group: GroupId,
        /// Of what.
        what: Belonging,
        /// As counted by the group, without what is below it.
        kept: u64,
        /// As found.
        found: u64,
    },
    /// Something belongs to what is no group.
    Orphan {
        /// The group that is not.
        group: GroupId,
        /// What it is.
        what: Belonging,
    },
    /// A CPU holds something back for what is no group.
    Stray {
        /// The group that is not.
        group: GroupId,
    },
}

impl fmt::Display for GroupViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongLabel { pfn } => write!(f, "{pfn:?} is on a list that it does not say"),
            Self::Lost { pfn, lists } => write!(f, "{pfn:?} says that it is listed and is on {lists} lists"),
            Self::WrongSize { group, node, list, kept, counted } => {
                let name = list.name();
                write!(f, "{name} of group {group}, node {node}: {kept} pages are kept, {counted} counted")
            }
            Self::Charges { group, usage, below } => {
                write!(f, "group {group} is charged {usage} pages, with {below} below it")
            }
            Self::SwapCharges { group, usage, below } => {
                write!(f, "group {group} is charged {usage} pages of swap, with {below} below it")
            }
            Self::Count { group, what, kept, found } => {
                write!(f, "group {group} counts {kept} {what}, and {found} belong to it")
            }
            Self::Orphan { group, what } => write!(f, "{what} belong to {group}, which is no group"),
            Self::Stray { group } => write!(f, "a CPU holds something back for {group}, which is none"),
        }
    }
}

impl<P: Platform> Groups<P> {
    /// Calls `visit` with the first frame of every listed folio: its group, and its list or the one that it is on its way to.
    /// Under the lists' locks: it must not touch them.
    pub fn for_each_listed(&self, mut visit: impl FnMut(Pfn, GroupId, LruList)) {
        let map = self.frames.map();
        let pin = self.frames.platform().pin();
        self.for_each_in_subtree(GroupId::ROOT, |id| {
            for lists in self.table.get(id).into_iter().flat_map(Group::all_lists) {
                let folios = lists.lock();
                for (list, folios) in LruList::ALL.into_iter().zip(folios.iter()) {
                    folios.iter(map).for_each(|head| visit(head, id, list));
                }
            }
        });
        for incoming in self.incoming.iter() {
            for head in incoming.lock().folios.iter(map) {
                let frame = map.known(head);
                let group = GroupId::from_bits(frame.memory_group().load(Ordering::Relaxed));
                visit(head, group, Label::of(frame).list());
            }
        }
        drop(pin);
    }

    /// Checks that lists, labels and charges agree. The machine is quiet. Frames' scratch words are zero afterwards.
    pub fn audit(&self, report: &mut dyn FnMut(GroupViolation)) {
        self.frames.clear_audit();
        self.audit_lists(report);
        self.frames.for_each_frame(|pfn, frame| {
            let listed = frame.kind().is_given_out() && frame.word().flags().contains(FrameFlags::LRU);
            let lists = frame.audit().load(Ordering::Relaxed);
            if lists != u32::from(listed) {
                report(GroupViolation::Lost { pfn, lists });
            }
        });
        self.frames.clear_audit();
        self.for_each_in_subtree(GroupId::ROOT, |id| self.audit_charges(id, report));
        for cells in self.cpus.iter() {
            for (group, amount) in core::iter::once(&cells.stock).chain(&cells.stats).map(TaggedAmount::get) {
                let there = self.table.get(group).is_some_and(|group| group.life.is_there());
                if amount != 0 && (group.is_root() || !there) {
                    report(GroupViolation::Stray { group });
                }
            }
        }
    }

    /// Holds what the groups count against a recount: `tell` calls what it is given with the group of each thing there is, and how
    /// many it is. The machine is quiet.
    pub fn recount(
        &self,
        what: Belonging,
        tell: impl FnOnce(&mut dyn FnMut(GroupId, u64)),
        report: &mut dyn FnMut(GroupViolation),
    ) {
        tell(&mut |id, many| {
            if id.is_root() {
                return;
            }
            match self.table.get(id).filter(|group| group.life.is_there()) {
                Some(group) => {
                    group.recounted.fetch_add(many, Ordering::Relaxed);
                }
                None => report(GroupViolation::Orphan { group: id, what }),
            }
        });
        self.for_each_in_subtree(GroupId::ROOT, |id| {
            let Some(group) = self.table.get(id).filter(|_| !id.is_root()) else { return };
            let found = group.recounted.swap(0, Ordering::Relaxed);
            let kept = match what {
                Belonging::Pages => self.charged(id),
                Belonging::Slots => self.own(id, |group| &group.swap),
                Belonging::Spaces => group.life.spaces().into(),
            };
            if kept != found {
                report(GroupViolation::Count { group: id, what, kept, found });
            }
        });
    }

    fn audit_lists(&self, report: &mut dyn FnMut(GroupViolation)) {
        self.for_each_in_subtree(GroupId::ROOT, |id| {
            let Some(group) = self.table.get(id) else { return };
            for node in (0..self.frames.platform().node_count()).filter_map(NodeId::new) {
                let Some(lists) = group.lists(node) else { continue };
                let _pin = self.frames.platform().pin();
                let folios = lists.lock();
                for (list, folios) in LruList::ALL.into_iter().zip(folios.iter()) {
                    let counted = self.audit_list(folios, report, |pfn, label| {
                        let frame = self.frames.known(pfn);
                        let group = GroupId::from_bits(frame.memory_group().load(Ordering::Relaxed));
                        label.place() == Place::Main
                            && (label.list(), group, frame.zone().node()) == (list, id, node)
                    });
                    let kept = lists.sizes()[list as usize];
                    if kept != counted {
                        report(GroupViolation::WrongSize { group: id, node, list, kept, counted });
                    }
                }
            }
        });
        for (cpu, incoming) in self.incoming.iter().enumerate() {
            let _pin = self.frames.platform().pin();
            let incoming = incoming.lock();
            let place = CpuId::new(cpu).map(Place::Incoming);
            self.audit_list(&incoming.folios, report, |_, label| Some(label.place()) == place);
        }
    }

    /// Marks what is on a list, and answers how many pages that is.
    fn audit_list(
        &self,
        folios: &FolioList,
        report: &mut dyn FnMut(GroupViolation),
        is_right: impl Fn(Pfn, Label) -> bool,
    ) -> u64 {
        let mut pages = 0;
        for pfn in folios.iter(self.frames.map()) {
            let frame = self.frames.known(pfn);
            frame.audit().fetch_add(1, Ordering::Relaxed);
            let (word, label) = (frame.word(), Label::of(frame));
            let active = matches!(label.list(), LruList::ActiveAnon | LruList::ActiveFile);
            let flags = word.flags();
            let said = flags.contains(FrameFlags::LRU)
                && flags.contains(FrameFlags::ACTIVE) == active
                && flags.contains(FrameFlags::UNEVICTABLE) == (label.list() == LruList::Unevictable);
            if !said || word.order() != label.order() || !is_right(pfn, label) {
                report(GroupViolation::WrongLabel { pfn });
            }
            pages += word.order().pages();
        }
        pages
    }

    fn audit_charges(&self, id: GroupId, report: &mut dyn FnMut(GroupViolation)) {
        let Some(group) = self.table.get(id).filter(|_| !id.is_root()) else { return };
        let (mut memory, mut swap) = (self.stocked(id), 0);
        {
            let _pin = self.frames.platform().pin();
            let _registry = self.registry.lock();
            for child in self.children(group) {
                memory += child.memory.usage();
                swap += child.swap.usage();
            }
        }
        if group.memory.usage() < memory {
            report(GroupViolation::Charges { group: id, usage: group.memory.usage(), below: memory });
        }
        if group.swap.usage() < swap {
            report(GroupViolation::SwapCharges { group: id, usage: group.swap.usage(), below: swap });
        }
    }
}
