//! Files whose bytes are in the page cache of a machine: read, written, mapped, and mapped without a name.

use crate::common::{HostMemory, USER, with_memory};
use quire_host::HostPlatform;
use quire_mm::file::{DeviceMemory, Direction, File, FileBacking, FileError, FileIo, Submitted, Transferred};
use quire_mm::frame::KernelHeap;
use quire_mm::platform::{PAGE_SIZE, Platform};
use quire_mm::space::{MapFlags, MapRequest, Protection};
use quire_tmpfs::{Account, Backend, Error, FileData, New, Options, Seek, Time, Tmpfs};
use std::ops::Range;

/// Bytes that are nowhere else: what is not cached is zeros, and nothing leaves the cache.
struct InCache(#[allow(dead_code, reason = "it is dropped with the bytes")] Account);

impl<P: Platform> FileBacking<P> for InCache {
    unsafe fn submit(&self, _: DeviceMemory<'_, P>, io: &FileIo<'_>) -> Submitted<Transferred, FileError> {
        Submitted::Done(Ok(match io.direction {
            Direction::Read => Transferred::Zeros,
            Direction::Write => Transferred::All,
        }))
    }
}

struct Cached<'m>(File<'m, HostPlatform>);

impl FileData for Cached<'_> {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn pages(&self) -> u64 {
        self.0.figures().cached
    }

    fn set_size(&self, size: u64) -> Result<(), Error> {
        Ok(self.0.set_size(size)?)
    }

    fn punch(&self, bytes: Range<u64>) -> Result<(), Error> {
        Ok(self.0.punch(bytes, |_| Ok(()))?)
    }

    fn allocate(&self, _: Range<u64>) -> Result<(), Error> {
        Err(Error::NotSupported)
    }

    fn seek(&self, at: u64, what: Seek) -> Option<u64> {
        Some(if what == Seek::Data { at } else { self.0.size() })
    }
}

struct OnMachine<'m>(&'m HostMemory);

impl<'m> Backend for OnMachine<'m> {
    type Platform = HostPlatform;
    type Data = Cached<'m>;

    fn platform(&self) -> &HostPlatform {
        self.0.platform()
    }

    fn now(&self) -> Time {
        Time::default()
    }

    fn create(&self, account: Account) -> Result<Cached<'m>, Error> {
        Ok(Cached(self.0.create_file(InCache(account), 0)?))
    }
}

#[test]
fn a_file_is_mapped_and_outlives_its_name() {
    with_memory(1, |memory, _| {
        let heap = KernelHeap::new(memory.kernel_frames()).unwrap();
        let fs = Tmpfs::new(&heap, OnMachine(memory), &Options::default()).unwrap();
        let file = fs.root().create(b"program", New::Regular, &USER).unwrap();
        file.set_size(3 * PAGE_SIZE).unwrap();
        let space = memory.create_space().unwrap();
        let shared = MapRequest {
            flags: MapFlags::SHARED,
            ..MapRequest::anonymous(3 * PAGE_SIZE, Protection::READ | Protection::WRITE)
        };
        let place = space.mmap_file(&shared, &file.data().unwrap().0).unwrap();
        fs.root().unlink(b"program").unwrap();
        drop(file);
        // The mapping has the inode, and its bytes.
        assert_eq!(fs.usage().inodes, 2);
        space.munmap(place, 3 * PAGE_SIZE).unwrap();
        assert_eq!(fs.usage().inodes, 1);
        assert_eq!(quire_tmpfs::audit(&fs, &mut |finding| panic!("{finding:?}")), fs.usage());
    });
}

#[test]
fn bytes_in_the_page_cache_are_truncated_and_punched_under_the_inode_lock() {
    with_memory(1, |memory, _| {
        let heap = KernelHeap::new(memory.kernel_frames()).unwrap();
        let fs = Tmpfs::new(&heap, OnMachine(memory), &Options::default()).unwrap();
        let file = fs.root().create(b"f", New::Regular, &USER).unwrap();
        file.set_size(5 * PAGE_SIZE + 7).unwrap();
        assert_eq!(file.stat().size, 5 * PAGE_SIZE + 7);
        file.allocate(quire_tmpfs::Allocate::Punch, 100, 2 * PAGE_SIZE).unwrap();
        assert_eq!(file.set_size(u64::MAX), Err(Error::Invalid));
        assert_eq!(file.allocate(quire_tmpfs::Allocate::Extend, 0, 10), Err(Error::NotSupported));
        assert_eq!(file.seek(5 * PAGE_SIZE + 7, Seek::Data), Err(Error::PastEnd));
        assert_eq!(file.seek(1, Seek::Hole), Ok(5 * PAGE_SIZE + 7));
    });
}
