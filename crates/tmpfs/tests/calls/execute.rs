//! Programs in a tmpfs: written, closed, executed, and not written to as long as they run. A kernel does so
//! with its initramfs. The results are those of Linux 6.18.

use crate::common::USER;
use crate::mapped::{new_fs, shared, with_machine};
use quire_frame::FailPlan;
use quire_mm::file::{File, PageBytes, PageError, UserCopy};
use quire_mm::frame::KernelHeap;
use quire_mm::platform::{Access, PAGE_SIZE, Platform};
use quire_mm::space::{MapRequest, Protection};
use quire_tmpfs::{Allocate, Error, New};

/// Bytes that a call writes.
struct From<'b>(&'b [u8]);

impl UserCopy for From<'_> {
    fn left(&self) -> u64 {
        self.0.len() as u64
    }

    fn fault_in(&mut self, bytes: usize) -> usize {
        bytes.min(self.0.len())
    }

    fn copy(&mut self, page: PageBytes<'_>) -> usize {
        page.set(0, self.0)
    }

    fn advance(&mut self, bytes: usize) {
        self.0 = &self.0[bytes..];
    }
}

fn write<P: Platform>(file: &File<'_, P>, at: u64, bytes: &[u8]) -> Result<u64, PageError> {
    let done = file.write(at, &mut From(bytes));
    done.stopped.map_or(Ok(done.bytes), Err)
}

#[test]
fn what_is_unpacked_runs_and_is_not_written_to() {
    with_machine(|memory, cpu| {
        let heap = KernelHeap::new(memory.kernel_frames()).unwrap();
        let fs = new_fs(&heap, memory);
        let inode = fs.root().create(b"init", New::Regular, &USER).unwrap();
        let open = |access| inode.data().unwrap().file().open(access);
        let writer = open(Access::Write).unwrap();
        let word = 0x1234_5678_u64.to_le_bytes();
        assert_eq!(inode.write(|_| write(&writer, 0, &word)), Ok(Ok(8)));
        inode.set_size(PAGE_SIZE).unwrap();
        assert_eq!(open(Access::Execute).unwrap_err(), PageError::TextBusy);
        // A mapping keeps it open.
        let other = memory.create_space().unwrap();
        let place = other.mmap_file(&shared(1), &writer).unwrap();
        drop(writer);
        assert_eq!(Error::from(open(Access::Execute).unwrap_err()).errno(), 26, "ETXTBSY");
        other.munmap(place, PAGE_SIZE).unwrap();

        let program = open(Access::Execute).unwrap();
        let space = memory.create_space().unwrap();
        let text = MapRequest::anonymous(PAGE_SIZE, Protection::READ | Protection::EXECUTE);
        let text = space.mmap_file(&text, &program).unwrap();
        drop(program);
        assert_eq!(cpu.program(&space).read_u64(text).unwrap(), 0x1234_5678);
        let modified = inode.stat().modified;
        assert_eq!(open(Access::Write).unwrap_err(), PageError::TextBusy);
        assert_eq!(inode.set_size(0), Err(Error::TextBusy));
        assert_eq!(inode.write(|data| write(data.file(), 0, &[7])), Err(Error::TextBusy));
        for mode in [Allocate::Extend, Allocate::KeepSize, Allocate::Punch] {
            assert_eq!(inode.allocate(mode, (0, PAGE_SIZE), None), Err(Error::TextBusy));
        }
        assert_eq!((inode.stat().size, inode.stat().modified), (PAGE_SIZE, modified));
        let reader = open(Access::Read).unwrap();
        let second = open(Access::Execute).unwrap();
        space.munmap(text, PAGE_SIZE).unwrap();
        assert_eq!(inode.set_size(0), Err(Error::TextBusy), "a second one runs it");
        drop(second);

        let writer = open(Access::Write).unwrap();
        assert_eq!(inode.write(|_| write(&writer, 0, &[7])), Ok(Ok(1)));
        assert_eq!(write(&reader, 0, &[7]), Err(PageError::NotForWriting));
        drop(writer);
        inode.allocate(Allocate::Punch, (0, PAGE_SIZE), None).unwrap();
        inode.set_size(0).unwrap();
        drop(reader);
        open(Access::Execute).unwrap();
        assert_eq!(quire_tmpfs::audit(&fs, &mut |finding| panic!("{finding:?}")), fs.usage());
    });
}

/// Linux's `memfd_create`, and `fexecve` of what it returned: its handle does not count, a further one does.
#[test]
fn a_program_runs_from_its_memfd() {
    with_machine(|memory, _| {
        let memfd = memory.create_shmem((), PAGE_SIZE).unwrap();
        assert_eq!(write(&memfd, 0, &[1]), Ok(1));
        let program = memfd.open(Access::Execute).unwrap();
        assert_eq!(write(&memfd, 0, &[2]), Ok(1));
        memfd.set_size(2 * PAGE_SIZE).unwrap();
        memfd.allocate(0..3 * PAGE_SIZE, false).unwrap();
        assert_eq!(memfd.open(Access::Write).unwrap_err(), PageError::TextBusy);
        drop(program);
        let writer = memfd.open(Access::Write).unwrap();
        drop(memfd);
        assert_eq!(writer.open(Access::Execute).unwrap_err(), PageError::TextBusy);
        let reader = writer.open(Access::Read).unwrap();
        drop(writer);
        reader.open(Access::Execute).unwrap();
    });
}

/// An opening that cannot be made counts as none.
#[test]
fn an_opening_that_fails_counts_as_none() {
    with_machine(|memory, _| {
        let heap = KernelHeap::new(memory.kernel_frames()).unwrap();
        let fs = new_fs(&heap, memory);
        let mut failures = 0;
        let inode = fs.root().create(b"init", New::Regular, &USER).unwrap();
        for (access, other) in [(Access::Write, Access::Execute), (Access::Execute, Access::Write)] {
            let mut opened = Vec::new();
            loop {
                memory.fail_points().set(FailPlan::nth(1));
                let made = inode.data().unwrap().file().open(access);
                memory.fail_points().set(FailPlan::OFF);
                match made {
                    Ok(file) => opened.push(file),
                    Err(error) => {
                        assert!(matches!(error, PageError::NoMemory(_)), "{error:?}");
                        failures += 1;
                        break;
                    }
                }
            }
            drop(opened);
            inode.data().unwrap().file().open(other).unwrap();
            inode.set_size(PAGE_SIZE).unwrap();
        }
        assert_eq!(failures, 2);
        assert_eq!(inode.stat().size, PAGE_SIZE);
    });
}
