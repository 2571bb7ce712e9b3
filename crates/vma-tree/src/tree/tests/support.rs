//! What the tests share: a machine that is nothing but CPUs, and small helpers.

use super::super::Node;
use quire_arch::paging::invented::Invented3;
use quire_arch::{Asid, CpuId, CpuMask, Execution, Pfn, PfnRange, Pin, Platform, RamClaim, TlbFlush};
use quire_sync::{CachePadded, Epoch, EpochSlot, PerCpu};
use std::boxed::Box;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// One CPU of a machine without memory. Each thread of a test has its own, so that a [`Pin`] tells them
/// apart.
pub(super) struct Cpu(pub(super) usize);

impl Execution for Cpu {
    fn relax(_attempt: u32) {
        std::thread::yield_now();
    }
}

// SAFETY: there is no RAM and no TLB to be wrong about, and each thread makes a CPU of its own number.
unsafe impl Platform for Cpu {
    type Paging = Invented3;

    fn for_each_ram(&self, _visit: &mut dyn FnMut(PfnRange)) {}

    fn ram_claim(&self) -> &RamClaim {
        unreachable!("no RAM")
    }

    fn direct_map(&self, _pfn: Pfn) -> NonNull<u8> {
        NonNull::dangling()
    }

    fn cpu_count(&self) -> usize {
        self.0 + 1
    }

    fn pin_enter(&self) -> CpuId {
        CpuId::new(self.0).expect("tests have few CPUs")
    }

    unsafe fn pin_exit(&self) {}

    fn flush_local(&self, _pin: &Pin<'_, Self>, _flush: TlbFlush) {}

    fn shootdown(&self, _pin: &Pin<'_, Self>, _cpus: &CpuMask, _flush: TlbFlush) {}

    unsafe fn activate(&self, _pin: &Pin<'_, Self>, _root: Option<(Pfn, Asid)>) {}

    fn asid_count(&self) -> u32 {
        1
    }

    fn now(&self) -> u64 {
        0
    }

    fn park(&self, _key: usize, _still: &mut dyn FnMut() -> bool) {}

    fn unpark(&self, _key: usize) {}
}

/// Epochs for `cpus` CPUs. The slots are leaked.
pub(super) fn epoch(cpus: usize) -> Epoch {
    let memory = Box::leak(Box::<[CachePadded<EpochSlot>]>::new_uninit_slice(cpus));
    // SAFETY: the block has the size and alignment that `init` asks for; it is leaked, so it is never freed.
    Epoch::new(unsafe { PerCpu::init(NonNull::from(memory).cast(), cpus, |_| EpochSlot::default()) })
}

/// The memory of a node, on the heap. It is poisoned and freed when this is dropped.
pub(super) struct NodeMemory<V>(NonNull<Node<V>>);

impl<V> NodeMemory<V> {
    pub(super) fn new() -> Self {
        Self(NonNull::from(Box::leak(Box::<Node<V>>::new_uninit())).cast())
    }

    pub(super) fn at(&self) -> NonNull<Node<V>> {
        self.0
    }
}

impl<V> Drop for NodeMemory<V> {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and only here it becomes one again. Poison first, for a reader that
        // still uses it.
        unsafe {
            self.0.write_bytes(0xaa, 1);
            drop(Box::from_raw(self.0.cast::<MaybeUninit<Node<V>>>().as_ptr()));
        }
    }
}

#[cfg(not(loom))]
pub(super) use single::*;

/// For the tests with one thread.
#[cfg(not(loom))]
mod single {
    use super::super::super::{Node, NodeStore, OutOfNodes, RangeTree, Writer};
    use super::NodeMemory;
    use quire_arch::{PAGE_SIZE, VirtAddr, VirtRange};
    use quire_frame::AllocError;
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::num::NonZeroUsize;
    use std::ptr::NonNull;
    use std::vec::Vec;

    /// What a store that was told to refuse says.
    pub(crate) const REFUSED: OutOfNodes = OutOfNodes(AllocError::OutOfMemory);

    /// Values are never looked into here.
    pub(crate) type Value = u8;

    /// A tree and the store of its nodes.
    #[derive(Default)]
    pub(crate) struct StoredTree<V, S> {
        tree: RangeTree<V>,
        store: S,
    }

    impl<V, S: NodeStore<V>> StoredTree<V, S> {
        /// An empty tree with its nodes in `store`.
        pub(crate) fn new(store: S) -> Self {
            Self { tree: RangeTree::new(), store }
        }

        /// The store, to look at.
        pub(crate) fn store(&self) -> &S {
            &self.store
        }

        /// The only writer of the tree.
        pub(crate) fn writer(&mut self) -> Writer<'_, V, S> {
            self.parts().2
        }

        /// The tree and the store, to look at, and the only writer of the tree.
        pub(crate) fn parts(&mut self) -> (&RangeTree<V>, &S, Writer<'_, V, S>) {
            // SAFETY: the pair is borrowed exclusively for as long as the writer lives, so there is no other
            // writer and no view, and the store stays the tree's.
            let writer = unsafe { self.tree.writer(&self.store) };
            (&self.tree, &self.store, writer)
        }
    }

    /// A tree with a [`TestStore`].
    pub(crate) type TestTree = StoredTree<Value, TestStore>;

    /// A store that knows which nodes are out, frees a retired node at once, and refuses when told to.
    #[derive(Default)]
    pub(crate) struct TestStore {
        out: RefCell<BTreeMap<NonNull<Node<Value>>, NodeMemory<Value>>>,
        /// How many more allocations succeed; `None` is without limit.
        pub(crate) budget: Cell<Option<usize>>,
        /// Every so many-th allocation fails; 0 is none.
        pub(crate) fail_every: Cell<usize>,
        calls: Cell<usize>,
    }

    impl TestStore {
        pub(crate) fn nodes_out(&self) -> usize {
            self.out.borrow().len()
        }
    }

    // SAFETY: nodes are fresh heap blocks. They are freed at once, which is right for tests without lock-free
    // readers: there is never an open section.
    unsafe impl NodeStore<Value> for TestStore {
        fn allocate(&self) -> Result<NonNull<Node<Value>>, OutOfNodes> {
            self.calls.set(self.calls.get() + 1);
            let failing = self.fail_every.get();
            if failing > 0 && self.calls.get().is_multiple_of(failing) {
                return Err(REFUSED);
            }
            if let Some(budget) = self.budget.get() {
                self.budget.set(Some(budget.checked_sub(1).ok_or(REFUSED)?));
            }
            let memory = NodeMemory::new();
            let node = memory.at();
            assert!(self.out.borrow_mut().insert(node, memory).is_none());
            Ok(node)
        }

        unsafe fn retire(&self, node: NonNull<Node<Value>>) {
            let memory = self.out.borrow_mut().remove(&node);
            drop(memory.expect("a node was given back that is not out"));
        }
    }

    impl Drop for TestStore {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                assert_eq!(self.nodes_out(), 0, "nodes leaked");
            }
        }
    }

    pub(crate) fn value(number: usize) -> NonNull<Value> {
        NonNull::without_provenance(NonZeroUsize::new(number + 1).expect("small numbers"))
    }

    /// `count` pages from page `first`.
    pub(crate) fn pages(first: u64, count: u64) -> VirtRange {
        VirtRange::from_len(VirtAddr(first * PAGE_SIZE), count * PAGE_SIZE).expect("within 64 bits")
    }

    /// The ranges in the tree, as first page and number of pages.
    pub(crate) fn contents(writer: &Writer<'_, Value, TestStore>) -> Vec<(u64, u64)> {
        writer.iter().map(|entry| (entry.range.start().0 / PAGE_SIZE, entry.range.pages())).collect()
    }
}
