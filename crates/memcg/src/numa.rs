//! `memory.numa_stat`: what a memcg has on each node.

use crate::folios::MemcgFolios;
use crate::id::MemcgId;
use crate::lists::LruList;
use crate::tree::MemcgTree;
use core::fmt;
use quire_arch::{MAX_NODES, NodeId, Order, PAGE_SHIFT, Platform};
use quire_frame::{FrameFlags, Kind};

/// Pages of a memcg and all below it.
#[derive(Clone, Copy, Default)]
pub(crate) struct NodePages {
    pub(crate) anon: u64,
    pub(crate) file: u64,
    /// Of `file`.
    pub(crate) shmem: u64,
    /// Of `file` in folios of the PMD's order, without shared memory.
    pub(crate) file_thp: u64,
    /// The same of shared memory.
    pub(crate) shmem_thp: u64,
}

/// Pages by node. Charges are not counted by node, so with several nodes all frames are looked at.
fn by_node<P: Platform>(tree: &MemcgTree<P>, id: MemcgId, all: NodePages) -> [NodePages; MAX_NODES] {
    let mut nodes = [NodePages::default(); MAX_NODES];
    if tree.frames().platform().node_count() == 1 {
        nodes[NodeId::FIRST.index()] = all;
        return nodes;
    }
    tree.frames().audit().for_each_frame(|_, frame| {
        let word = frame.word();
        let kind = word.kind();
        let counts = match kind {
            Kind::Anonymous | Kind::File => true,
            // In the cache of its file still.
            Kind::Shmem => word.flags().contains(FrameFlags::SHARED_BY_NAME),
            _ => false,
        };
        if !counts {
            return;
        }
        if !tree.is_below(MemcgId::from_bits(frame.as_folio().memcg()), id) {
            return;
        }
        let (node, pages) = (&mut nodes[frame.zone().node().index()], word.order().pages());
        let huge = if word.order() == Order::PMD { pages } else { 0 };
        match kind {
            Kind::Anonymous => node.anon += pages,
            Kind::Shmem => {
                node.file += pages;
                node.shmem += pages;
                node.shmem_thp += huge;
            }
            _ => {
                node.file += pages;
                node.file_thp += huge;
            }
        }
    });
    nodes
}

/// Writes the file of a memcg, which has `all`.
pub(crate) fn write_numa_stat<P: Platform>(
    tree: &MemcgTree<P>,
    id: MemcgId,
    all: NodePages,
    out: &mut dyn fmt::Write,
) -> fmt::Result {
    let count = tree.frames().platform().node_count();
    let nodes = || (0..count).filter_map(NodeId::new);
    let pages = by_node(tree, id, all);
    let mut line = |name: &str, pages_on: &dyn Fn(NodeId) -> u64| {
        out.write_str(name)?;
        nodes().try_for_each(|node| write!(out, " N{}={}", node.index(), pages_on(node) << PAGE_SHIFT))?;
        out.write_char('\n')
    };
    line("anon", &|node| pages[node.index()].anon)?;
    line("file", &|node| pages[node.index()].file)?;
    line("shmem", &|node| pages[node.index()].shmem)?;
    line("file_thp", &|node| pages[node.index()].file_thp)?;
    line("shmem_thp", &|node| pages[node.index()].shmem_thp)?;
    let mut sizes = [[0; LruList::COUNT]; MAX_NODES];
    for node in nodes() {
        let sums = &mut sizes[node.index()];
        tree.for_each_in_subtree(id, |below| {
            let of_one = MemcgFolios::new(tree).sizes(below, node);
            sums.iter_mut().zip(of_one).for_each(|(sum, pages)| *sum += pages);
        });
    }
    LruList::ALL.iter().try_for_each(|&list| line(list.name(), &|node| sizes[node.index()][list as usize]))
}
