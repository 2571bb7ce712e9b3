//! A collapse of a file that none has open for writing, against one who opens it so, faults, cuts and a
//! second collapse.

use crate::common::{FileStore, MemoryFile, file_request, read_file, write_file};
use crate::files::PAST_END;
use crate::machines::*;
use quire_mm::file::File;
use quire_sync::atomic::as_one_step;
use shuttle::thread;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where a large leaf may be.
const BLOCK: VirtAddr = VirtAddr(1 << 39);
/// The second page of it.
const NEXT: VirtAddr = VirtAddr(BLOCK.0 + PAGE);
const PAGES: u64 = 512;

struct Scene<'a, 'm> {
    machine: &'a Machine,
    space: &'a HostSpace<'m>,
    /// Open for reading.
    file: File<'a, HostPlatform>,
    store: Arc<FileStore>,
}

impl<'a, 'm> Scene<'a, 'm> {
    /// A file of a block, with 1 and 2 in its first pages. The backing takes two folios for it, which are
    /// cached, but not one.
    fn new(machine: &'a Machine, space: &'a HostSpace<'m>) -> Self {
        let (backing, store) = MemoryFile::new(Vec::new());
        store.largest_order.store(Order::PMD.get() - 1, Ordering::Relaxed);
        let writer = machine.memory().create_file(backing, 0).expect("there is memory enough");
        let mut bytes = vec![0; (PAGES * PAGE) as usize];
        bytes[0] = 1;
        bytes[PAGE as usize] = 2;
        write_file(&writer, 0, &bytes);
        writer.sync(0..u64::MAX, false).expect("nothing fails");
        let file = writer.open(Access::Read).expect("there is memory enough");
        let request = file_request(0, PAGES, Protection::READ, MapFlags::empty());
        space.mmap_file(&request.at(BLOCK, MapFlags::FIXED), &file).expect("there is memory enough");
        Self { machine, space, file, store }
    }

    /// The file, open for writing.
    fn open(&self) -> File<'a, HostPlatform> {
        self.file.open(Access::Write).expect("there is memory enough")
    }

    fn collapse(&self, cpu: usize) {
        // It may be refused.
        let _ = on_cpu(self.machine, cpu, self.space, |_| self.space.madvise(BLOCK, MIB2, Advice::Collapse));
    }

    fn is_collapsed(&self) -> bool {
        self.machine.memory().file_totals().huge > 0
    }

    fn stored(&self, page: u64) -> u8 {
        self.store.bytes.lock().expect("no thread panicked")[(page * PAGE) as usize]
    }
}

fn with_file(cpus: usize, model: impl Fn(&Scene<'_, '_>) + Send + Sync + Clone + 'static) {
    let setup = Setup::mib(10).cpus(cpus).overcommit().with(|memory| memory.huge.read_only_files = true);
    check_seeded(FEW, seed_of(&model), move || {
        with_spaces(&setup, |machine, [space]| {
            let scene = as_one_step(|| ManuallyDrop::new(Scene::new(machine, space)));
            model(&scene);
            audit(machine);
            as_one_step(|| {
                space.munmap(BLOCK, MIB2).expect("it is mapped");
                drop(ManuallyDrop::into_inner(scene));
            });
        });
    });
}

/// Hazard: a file that is written to has a folio that its backing does not take. Also: a program goes on
/// reading what the file was before.
#[test]
fn shuttle_a_collapse_of_a_file_against_one_who_opens_it_for_writing() {
    with_file(3, |scene| {
        let Scene { machine, space, file, .. } = scene;
        let written = Fact::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..3 {
                    let late = written.is_told();
                    let seen = read(machine, 0, space, NEXT);
                    assert!(seen == 3 || seen == 2 && !late, "{seen}");
                }
            });
            scope.spawn(|| {
                as_cpu(machine, 1, || {
                    let writer = scene.open();
                    write_file(&writer, PAGE, &[3]);
                    written.tell();
                    as_one_step(|| {
                        assert!(!scene.is_collapsed(), "a file that is written to");
                        writer.sync(0..u64::MAX, false).expect("nothing fails");
                        drop(writer);
                    });
                });
            });
            scope.spawn(|| scene.collapse(2));
        });
        as_one_step(|| {
            assert_eq!([BLOCK, NEXT].map(|at| read(machine, 0, space, at)), [1, 3]);
            assert_eq!((read_file(file, PAGE, 1), scene.stored(1)), (vec![3], 3));
        });
    });
}

/// The program of one who opens it writes by a mapping, and the last write is that of the file.
#[test]
fn shuttle_a_collapse_of_a_file_against_a_mapping_that_writes() {
    const OTHER: VirtAddr = VirtAddr(BLOCK.0 + MIB2);
    with_file(2, |scene| {
        let Scene { machine, space, .. } = scene;
        thread::scope(|scope| {
            scope.spawn(|| {
                as_cpu(machine, 0, || {
                    let writer = scene.open();
                    let request = file_request(0, 2, RW, MapFlags::SHARED);
                    let request = request.at(OTHER, MapFlags::FIXED | MapFlags::SHARED);
                    space.mmap_file(&request, &writer).expect("there is memory enough");
                });
                for value in [4, 5] {
                    write(machine, 0, space, VirtAddr(OTHER.0 + PAGE), value);
                    assert_eq!(read(machine, 0, space, NEXT), value);
                }
                as_cpu(machine, 0, || space.munmap(OTHER, 2 * PAGE).expect("it is mapped"));
            });
            scope.spawn(|| scene.collapse(1));
        });
        as_one_step(|| {
            assert_eq!([BLOCK, NEXT].map(|at| read(machine, 0, space, at)), [1, 5]);
            scene.file.sync(0..u64::MAX, false).expect("nothing fails");
            assert_eq!(scene.stored(1), 5);
        });
    });
}

/// Nothing is left past the new end, and no access reaches it.
#[test]
fn shuttle_a_collapse_of_a_file_against_a_truncation_and_faults() {
    with_file(3, |scene| {
        let Scene { machine, space, file, .. } = scene;
        let cut = Fact::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..3 {
                    let late = cut.is_told();
                    let seen = on_cpu(machine, 0, space, |program| program.read_u64(NEXT));
                    assert!(seen == Err(PAST_END) || seen == Ok(2) && !late, "{seen:?}");
                }
            });
            scope.spawn(|| {
                as_cpu(machine, 1, || {
                    scene.open().set_size(PAGE).expect("a file can be smaller");
                    cut.tell();
                });
            });
            scope.spawn(|| scene.collapse(2));
        });
        as_one_step(|| {
            assert_eq!((file.figures().cached <= 1, scene.is_collapsed()), (true, false));
            assert_eq!(read(machine, 0, space, BLOCK), 1);
        });
    });
}

/// Two collapses, and khugepaged: one folio is made, and what was clean is read nowhere again.
#[test]
fn shuttle_collapses_of_a_file_at_once() {
    with_file(3, |scene| {
        let Scene { machine, space, .. } = scene;
        machine.memory().huge().change(|policy| policy.with_enabled(HugeEnabled::Always));
        thread::scope(|scope| {
            scope.spawn(|| scene.collapse(0));
            scope.spawn(|| scene.collapse(1));
            scope.spawn(|| as_cpu(machine, 2, || machine.memory().khugepaged_step()));
        });
        as_one_step(|| {
            assert_eq!([BLOCK, NEXT].map(|at| read(machine, 0, space, at)), [1, 2]);
            assert_eq!(machine.memory().file_totals().huge, PAGES);
            assert_eq!(scene.store.reads.load(Ordering::Relaxed), 0);
        });
    });
}
