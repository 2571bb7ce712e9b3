//! Files whose bytes are shared memory of a machine: mapped, mapped without a name, with holes and limits.

use crate::common::{HostMemory, USER, with_memory};
use quire_host::HostPlatform;
use quire_mm::file::File;
use quire_mm::frame::KernelHeap;
use quire_mm::platform::{Access, PAGE_SIZE};
use quire_mm::space::{FaultError, MapFlags, MapRequest, Protection};
use quire_tmpfs::{Account, Allocate, Backend, Error, Limits, New, Options, Seek, Time, Tmpfs};

struct OnMachine<'m>(&'m HostMemory);

impl<'m> Backend for OnMachine<'m> {
    type Platform = HostPlatform;
    type Data = File<'m, HostPlatform>;

    fn platform(&self) -> &HostPlatform {
        self.0.platform()
    }

    fn now(&self) -> Time {
        Time::default()
    }

    fn create(&self, account: Account) -> Result<Self::Data, Error> {
        Ok(self.0.create_shmem(account, 0)?)
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
        let place = space.mmap_file(&shared, file.data().unwrap()).unwrap();
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
        file.allocate(Allocate::Punch, 100, 2 * PAGE_SIZE).unwrap();
        assert_eq!(file.set_size(u64::MAX), Err(Error::Invalid));
        assert_eq!(file.seek(0, Seek::Data), Err(Error::PastEnd), "all of it is a hole");
        file.allocate(Allocate::Extend, 0, 10).unwrap();
        assert_eq!(file.seek(1, Seek::Hole), Ok(1), "what nobody has used looks like a hole");
        assert_eq!(file.stat().blocks, 8);
    });
}

#[test]
fn a_fault_beyond_the_limit_is_a_bus_error_until_pages_are_given_back() {
    with_memory(1, |memory, _| {
        let heap = KernelHeap::new(memory.kernel_frames()).unwrap();
        let limits = Limits { pages: Some(2), inodes: None };
        let fs = Tmpfs::new(&heap, OnMachine(memory), &Options { limits, ..Options::default() }).unwrap();
        let file = fs.root().create(b"f", New::Regular, &USER).unwrap();
        file.set_size(4 * PAGE_SIZE).unwrap();
        let space = memory.create_space().unwrap();
        let request = MapRequest {
            flags: MapFlags::SHARED,
            ..MapRequest::anonymous(4 * PAGE_SIZE, Protection::READ | Protection::WRITE)
        };
        let place = space.mmap_file(&request, file.data().unwrap()).unwrap();
        let fault = |page: u64| {
            let addr = place.checked_add(page * PAGE_SIZE).unwrap();
            space.fault(addr, Access::Write)
        };
        assert_eq!([fault(0), fault(1), fault(2)], [Ok(()), Ok(()), Err(FaultError::Bus)]);
        assert_eq!((fs.stat().free_blocks, file.stat().blocks), (0, 16));
        file.allocate(Allocate::Punch, 0, PAGE_SIZE).unwrap();
        assert_eq!([fault(2), fault(3)], [Ok(()), Err(FaultError::Bus)]);
        space.munmap(place, 4 * PAGE_SIZE).unwrap();
    });
}
