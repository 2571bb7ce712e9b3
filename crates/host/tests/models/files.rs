//! Files that are cut, punched and invalidated while programs access their mappings and calls read and write
//! them.

use crate::common::{Buffer, FileStore, MemoryFile, file_request, read_file, write_file};
use crate::machines::*;
use quire_mm::file::*;
use quire_sync::atomic::as_one_step;
use shuttle::sync::Mutex;
use shuttle::thread;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const PAST_END: AccessError<FaultError> = AccessError::Fault(FaultError::PastEnd);
const BUS: AccessError<FaultError> = AccessError::Fault(FaultError::Bus);

/// A file of two pages, which have 1 and 2 in each word, as one space maps it.
pub(crate) struct Scene<'a, 'm> {
    pub(crate) machine: &'a Machine,
    pub(crate) space: &'a HostSpace<'m>,
    pub(crate) file: File<'a, HostPlatform>,
    pub(crate) store: Arc<FileStore>,
}

/// The page of the file where its shared mapping has it: on either side of a border of every level of tables.
pub(crate) fn shared(page: u64) -> VirtAddr {
    VirtAddr(ADDR.0 + page * PAGE)
}

/// The same of its private mapping, within one table.
fn private(page: u64) -> VirtAddr {
    VirtAddr(ELSEWHERE.0 - (1 - page) * PAGE)
}

fn word(addr: VirtAddr, word: u64) -> VirtAddr {
    VirtAddr(addr.0 + 8 * word)
}

impl<'a, 'm> Scene<'a, 'm> {
    fn new(
        machine: &'a Machine,
        space: &'a HostSpace<'m>,
        backing: MemoryFile,
        store: Arc<FileStore>,
    ) -> Self {
        let is_large = store.largest_order.load(Ordering::Relaxed) > 0;
        let size = if is_large { 0 } else { 2 * PAGE };
        let file = machine.memory().create_file(backing, size).expect("there is memory enough");
        if is_large {
            // By one call, which makes one folio of them.
            let bytes = store.bytes.lock().expect("no thread panicked").clone();
            write_file(&file, 0, &bytes);
            file.sync(0..u64::MAX, false).expect("nothing fails");
        }
        for (addr, flags) in [(shared(0), MapFlags::SHARED), (private(0), MapFlags::empty())] {
            let request = file_request(0, 2, RW, flags).at(addr, MapFlags::FIXED | flags);
            space.mmap_file(&request, &file).expect("there is memory enough");
        }
        Self { machine, space, file, store }
    }

    /// Both pages are cached, and nothing maps them.
    pub(crate) fn cache_all(&self) {
        as_one_step(|| _ = read_file(&self.file, 0, 2 * PAGE as usize));
    }

    /// What is stored of a page, and of all after it, is this from now on: the embedder's part of a change.
    fn store_from(&self, page: usize, value: u64) {
        let mut bytes = self.store.bytes.lock().expect("no thread panicked");
        bytes[page * PAGE as usize..].copy_from_slice(&value.to_le_bytes().repeat(PAGE as usize / 8));
    }

    /// The first word that is stored of a page.
    pub(crate) fn stored(&self, page: usize) -> u64 {
        first_word(&self.store.bytes.lock().expect("no thread panicked")[page * PAGE as usize..])
    }

    /// Runs `action` as CPU `cpu`, with no program.
    pub(crate) fn on<R>(&self, cpu: usize, action: impl FnOnce() -> R) -> R {
        as_cpu(self.machine, cpu, action)
    }

    pub(crate) fn read_at_end(&self, addr: VirtAddr) -> u64 {
        as_one_step(|| read(self.machine, 0, self.space, addr))
    }
}

fn first_word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("a word"))
}

/// Checks `model` with such a file, on machines of `cpus`: with folios of one page, and with one that has
/// both pages and is cached. Everything is audited while the file is open still, and when it is closed.
pub(crate) fn with_file(cpus: usize, model: impl Fn(&Scene<'_, '_>) + Send + Sync + Clone + 'static) {
    with_folios(cpus, Order::ZERO, model.clone());
    with_folios(cpus, Order::new(1).expect("an order"), model);
}

/// The same with folios of one page only.
fn with_pages(cpus: usize, model: impl Fn(&Scene<'_, '_>) + Send + Sync + Clone + 'static) {
    with_folios(cpus, Order::ZERO, model);
}

fn with_folios(cpus: usize, largest: Order, model: impl Fn(&Scene<'_, '_>) + Send + Sync + Clone + 'static) {
    let setup = Setup::mib(2).cpus(cpus).overcommit();
    check_seeded(SOME, seed_of(&model), move || {
        with_spaces(&setup, |machine, [space]| {
            let scene = as_one_step(|| {
                let pages = [1_u64, 2].map(|page| page.to_le_bytes().repeat(PAGE as usize / 8));
                let (backing, store) = MemoryFile::new(pages.concat());
                store.largest_order.store(largest.get(), Ordering::Relaxed);
                ManuallyDrop::new(Scene::new(machine, space, backing, store))
            });
            model(&scene);
            audit(machine);
            as_one_step(|| drop(ManuallyDrop::into_inner(scene)));
        });
    });
}

/// Hazard: a fault maps a page beside its removal. After the call no access reaches it by either mapping,
/// also not where a fault in another page maps what is cached around it, and no copy of it is left.
#[test]
fn shuttle_a_truncation_against_faults() {
    with_file(3, |scene| {
        let Scene { machine, space, file, .. } = scene;
        scene.cache_all();
        let cut = Fact::default();
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for value in 7..9 {
                    let late = cut.is_told();
                    let written = program.write_u64(shared(1), value);
                    assert!(written == Err(PAST_END) || written == Ok(()) && !late, "{written:?}");
                    let late = cut.is_told();
                    let seen = program.read_u64(shared(1));
                    let is_there = written == Ok(()) && seen == Ok(value) && !late;
                    assert!(seen == Err(PAST_END) || is_there, "{seen:?}");
                }
            });
            spawn_on(scope, machine, 1, space, |program| {
                // Not mapped before, so the copy is made of the cache.
                let late = cut.is_told();
                let written = program.write_u64(private(1), 9);
                assert!(written == Err(PAST_END) || written == Ok(()) && !late, "{written:?}");
                assert_eq!(program.read_u64(private(0)), Ok(1));
                let late = cut.is_told();
                let seen = program.read_u64(private(1));
                assert!(seen == Err(PAST_END) || seen == Ok(9) && !late, "{seen:?}");
            });
            scope.spawn(|| {
                scene.on(2, || file.set_size(PAGE)).expect("a file can be smaller");
                cut.tell();
            });
        });
        as_one_step(|| {
            for addr in [shared(1), private(1)] {
                assert_eq!(on_cpu(machine, 0, space, |program| program.read_u64(addr)), Err(PAST_END));
            }
            // A large folio was dirty as a whole, if the page that is gone was.
            let is_large = scene.store.largest_order.load(Ordering::Relaxed) > 0;
            assert_eq!(file.figures().cached, 1);
            assert!(file.figures().dirty == 0 || is_large);
            assert_eq!(space.figures().resident_anonymous, 0, "a copy of what is past the end");
        });
    });
}

/// Hazard: what was past the end comes back when the file grows. A write beside both calls is there or not;
/// one after them is.
#[test]
fn shuttle_a_truncation_and_growth_against_writes() {
    with_file(3, |scene| {
        let Scene { machine, space, file, .. } = scene;
        let (cut, wrote) = (Fact::default(), Fact::default());
        let must_be = AtomicU64::new(u64::MAX);
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                let late = cut.is_told();
                program.write_u64(word(shared(1), 3), 7).expect("the page stays");
                wrote.tell();
                if late {
                    must_be.store(7, Ordering::Relaxed);
                }
            });
            scope.spawn(|| {
                let early = wrote.is_told();
                scene.on(1, || {
                    file.set_size(PAGE + 16).expect("a file can be smaller");
                    // The embedder's part.
                    scene.store.bytes.lock().expect("no thread panicked").truncate(PAGE as usize + 16);
                    file.set_size(2 * PAGE).expect("a file can be larger");
                });
                cut.tell();
                if early {
                    must_be.store(0, Ordering::Relaxed);
                }
            });
            scope.spawn(|| {
                let late = cut.is_told();
                let bytes = scene.on(2, || read_file(file, PAGE, PAGE as usize));
                assert!(matches!(bytes.len(), 16 | 4096), "{} bytes", bytes.len());
                let seen: Vec<_> = bytes.chunks(8).map(first_word).collect();
                assert_eq!(seen[..2], [2, 2]);
                assert!(seen[2..].iter().all(|&value| matches!(value, 0 | 7) || value == 2 && !late));
            });
        });
        let (seen, wanted) = (scene.read_at_end(word(shared(1), 3)), must_be.into_inner());
        assert!(seen == wanted || wanted == u64::MAX && matches!(seen, 0 | 7), "{seen}, not {wanted}");
        assert_eq!(scene.read_at_end(word(shared(1), 1)), 2);
        assert_eq!(scene.read_at_end(word(shared(1), 2)), 0, "it was past the end");
    });
}

/// Hazard: a page of a hole is brought in, or mapped, beside its removal. What was there before is seen by no
/// access after the call, a write beside it is there or not, and the edge of the hole has zeros.
#[test]
fn shuttle_a_punch_against_faults_and_calls() {
    with_file(3, |scene| {
        let Scene { machine, space, file, .. } = scene;
        let punched = Fact::default();
        as_one_step(|| write(machine, 0, space, private(1), 5));
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                let late = punched.is_told();
                let seen = program.read_u64(shared(1)).expect("the file is as long as before");
                assert!(seen == 0 || seen == 2 && !late, "{seen}");
                program.write_u64(word(shared(1), 1), 7).expect("the file is as long as before");
                if late {
                    assert_eq!(program.read_u64(word(shared(1), 1)), Ok(7), "a write is lost");
                }
            });
            scope.spawn(|| {
                scene.on(1, || {
                    let free = |whole| scene.store.free(whole);
                    file.punch(PAGE - 8..2 * PAGE, free).expect("the edge can be read");
                });
                punched.tell();
                let seen = scene.on(1, || read_file(file, PAGE - 16, 24));
                assert_eq!(seen.chunks(8).map(first_word).collect::<Vec<_>>(), [1, 0, 0]);
            });
            scope.spawn(|| {
                let late = punched.is_told();
                let seen = first_word(&scene.on(2, || read_file(file, PAGE, 8)));
                assert!(seen == 0 || seen == 2 && !late, "{seen}");
            });
        });
        assert_eq!((scene.read_at_end(shared(0)), scene.read_at_end(shared(1))), (1, 0));
        assert!(matches!(scene.read_at_end(word(shared(1), 1)), 0 | 7), "what was there before");
        assert_eq!(scene.read_at_end(private(1)), 5, "a copy that the program made");
    });
}

/// Hazard: a page of a hole is read after it has left the cache, and before what is stored of it is freed; or
/// it is written back after that.
#[test]
fn shuttle_a_hole_by_a_mapping_against_faults_and_writeback() {
    with_file(3, |scene| {
        let Scene { machine, space, file, .. } = scene;
        let removed = Fact::default();
        as_one_step(|| write(machine, 0, space, shared(1), 5));
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for _ in 0..2 {
                    let late = removed.is_told();
                    let seen = program.read_u64(private(1)).expect("the file is as long as before");
                    assert!(seen == 0 || seen == 5 && !late, "{seen}");
                }
            });
            scope.spawn(|| {
                on_cpu(machine, 1, space, |_| space.madvise(shared(1), PAGE, Advice::Remove))
                    .expect("a hole can be made");
                removed.tell();
            });
            scope.spawn(|| assert_eq!(scene.on(2, || file.sync(0..u64::MAX, false)), Ok(())));
        });
        assert_eq!((scene.read_at_end(shared(1)), scene.stored(1)), (0, 0));
    });
}

/// Hazard: a page is written to by a mapping after it was written back, and before it leaves the cache. It
/// moves with what was written, or the write finds that the file ends before it.
#[test]
fn shuttle_a_page_cut_out_against_writes() {
    with_file(2, |scene| {
        let Scene { machine, space, file, store } = scene;
        let written = AtomicU64::new(2);
        scene.cache_all();
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for value in 7..10 {
                    match program.write_u64(shared(1), value) {
                        Ok(()) => written.store(value, Ordering::Relaxed),
                        Err(error) => assert_eq!(error, PAST_END),
                    }
                }
            });
            scope.spawn(|| {
                let cut = || {
                    store.bytes.lock().expect("no thread panicked").drain(..PAGE as usize);
                    Ok(())
                };
                scene.on(1, || file.replace_from(0, PAGE, cut)).expect("it can be written");
            });
        });
        assert_eq!(scene.read_at_end(shared(0)), written.into_inner(), "a write is lost");
    });
}

/// Calls that write and that change the size come one after the other, as the lock of the inode has it; reads
/// beside them find old bytes, new ones, or zeros, up to the end of the file.
#[test]
fn shuttle_a_truncation_against_reads_and_writes_by_calls() {
    with_file(3, |scene| {
        let Scene { file, .. } = scene;
        let (inode, last) = (Mutex::new(()), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                let _inode = inode.lock().expect("no thread panicked");
                scene.on(0, || write_file(file, PAGE + 32, &9_u64.to_le_bytes()));
                last.store(1, Ordering::Relaxed);
            });
            scope.spawn(|| {
                let _inode = inode.lock().expect("no thread panicked");
                scene.on(1, || file.set_size(PAGE + 16)).expect("a file can be smaller");
                last.store(2, Ordering::Relaxed);
            });
            scope.spawn(|| {
                let bytes = scene.on(2, || read_file(file, PAGE, PAGE as usize));
                let seen: Vec<_> = bytes.chunks(8).map(first_word).collect();
                assert!(matches!(seen.len(), 2 | 5 | 512), "{} words", seen.len());
                assert_eq!(seen[..2], [2, 2]);
                assert!(seen[2..].iter().all(|value| matches!(value, 0 | 2 | 9)), "{seen:?}");
            });
        });
        let (size, tail): (u64, &[u64]) = match last.into_inner() {
            1 => (PAGE + 40, &[2, 2, 0, 0, 9]),
            _ => (PAGE + 16, &[2, 2]),
        };
        let bytes = as_one_step(|| read_file(file, PAGE, PAGE as usize));
        assert_eq!(bytes.chunks(8).map(first_word).collect::<Vec<_>>(), tail);
        assert_eq!(file.size(), size);
    });
}

/// Hazard: a fork copies the entry of a private copy that a truncation has unmapped from the parent already.
#[test]
fn shuttle_a_fork_against_a_truncation() {
    with_file(2, |scene| {
        let Scene { machine, space, file, .. } = scene;
        as_one_step(|| {
            write(machine, 0, space, private(1), 5);
            write(machine, 0, space, private(0), 4);
            write(machine, 0, space, shared(1), 6);
        });
        let cut = Fact::default();
        let mut child = None;
        thread::scope(|scope| {
            scope.spawn(|| {
                let new = fork_on(machine, 0, space);
                for (addr, value) in [(private(1), 5), (shared(1), 6)] {
                    let late = cut.is_told();
                    let seen = on_cpu(machine, 0, &new, |program| program.read_u64(addr));
                    assert!(seen == Err(PAST_END) || seen == Ok(value) && !late, "{seen:?}");
                }
                child = Some(new);
            });
            scope.spawn(|| {
                scene.on(1, || file.set_size(PAGE)).expect("a file can be smaller");
                cut.tell();
            });
        });
        as_one_step(|| {
            let child = child.take().expect("it was made");
            for space in [*space, &*child] {
                for addr in [private(1), shared(1)] {
                    assert_eq!(on_cpu(machine, 0, space, |program| program.read_u64(addr)), Err(PAST_END));
                }
                assert_eq!(read(machine, 0, space, private(0)), 4);
                assert_eq!(space.figures().resident_anonymous, PAGE, "a copy of what is past the end");
            }
        });
    });
}

/// What is stored changes, and the pages are invalidated: they are read again, unless the call has said that
/// they are in use. What a program has written is not lost.
#[test]
fn shuttle_an_invalidation_against_faults() {
    with_file(3, |scene| {
        let Scene { machine, space, file, .. } = scene;
        scene.cache_all();
        let gone = Fact::default();
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                let late = gone.is_told();
                let seen = program.read_u64(private(1)).expect("the file is as long as before");
                assert!(seen == 3 || seen == 2 && !late, "{seen}");
            });
            spawn_on(scope, machine, 1, space, |program| {
                assert_eq!(program.write_u64(word(shared(0), 1), 7), Ok(()));
                assert_eq!(program.read_u64(word(shared(0), 1)), Ok(7), "a write is lost");
            });
            scope.spawn(|| {
                scene.store_from(1, 3);
                if scene.on(2, || file.invalidate(PAGE..2 * PAGE)).is_ok() {
                    gone.tell();
                }
                _ = scene.on(2, || file.invalidate(0..PAGE));
            });
        });
        assert_eq!((scene.read_at_end(shared(0)), scene.read_at_end(word(shared(0), 1))), (1, 7));
        let seen = scene.read_at_end(shared(1));
        assert!(seen == 3 || seen == 2 && !gone.is_told(), "{seen}");
    });
}

/// A page cannot be read: all that wait for it get an error, none sees what it has, and it is read again once
/// that is possible.
#[test]
fn shuttle_two_readers_of_a_page_that_fails() {
    with_pages(3, |scene| {
        let Scene { machine, space, file, store, .. } = scene;
        store.fails_reads.store(true, Ordering::Relaxed);
        let mended = Fact::default();
        thread::scope(|scope| {
            for (cpu, addr) in [(0, shared(1)), (1, private(1))] {
                let mended = &mended;
                spawn_on(scope, machine, cpu, space, move |program| {
                    for _ in 0..2 {
                        let (late, early) = (mended.is_told(), program.read_u64(addr));
                        let may_fail = early == Err(BUS) && !late;
                        assert!(early == Ok(2) && mended.is_told() || may_fail, "{early:?}");
                    }
                });
            }
            scope.spawn(|| {
                let mut bytes = [0; 8];
                let done = scene.on(2, || file.read(PAGE, &mut Buffer::new(&mut bytes)));
                assert_eq!((done.bytes, done.stopped), (0, Some(PageError::File(FileError::Io))));
                store.fails_reads.store(false, Ordering::Relaxed);
                // A thread may have slept for the lock of a page that was being read, and could not be.
                mended.tell();
            });
        });
        assert_eq!(scene.read_at_end(shared(1)), 2);
        // The other page came with it, unless that read failed and the page was read alone.
        as_one_step(|| assert!((1..=2).contains(&file.figures().cached)));
    });
}
