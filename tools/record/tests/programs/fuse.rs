//! A program that serves files by FUSE, and uses them itself.

use crate::shared::{FILE_AREA, NOT_PERMITTED};
use crate::{PAGE, execute, leave, nap};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Numbers of requests.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const OPEN: u32 = 14;
const READ: u32 = 15;
const STATFS: u32 = 17;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const BATCH_FORGET: u32 = 42;
/// What a request begins with, and the most that one has.
const HEADER: usize = 40;
const LONGEST: usize = 1 << 18;
/// The one file, below the folder with number 1.
const FILE: u64 = 2;
const FILE_BYTES: u64 = 2 * PAGE as u64;

/// Bytes of the numbers of a message.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn words(mut self, words: &[u64]) -> Self {
        self.0.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        self
    }

    fn halves(mut self, halves: &[u32]) -> Self {
        self.0.extend(halves.iter().flat_map(|half| half.to_ne_bytes()));
        self
    }

    /// What is known of a file.
    fn facts(self, node: u64) -> Self {
        let (mode, bytes) =
            if node == FILE { (libc::S_IFREG | 0o755, FILE_BYTES) } else { (libc::S_IFDIR | 0o755, 0) };
        self.words(&[node, bytes, 0, 0, 0, 0]).halves(&[0, 0, 0, mode, 1, 0, 0, 0, PAGE as u32, 0])
    }
}

/// Serves until nothing is mounted any more. Counts requests of the usual kinds that others than this process
/// make: their threads are not its own.
fn serve(mut device: File, others: &AtomicU32) {
    let mut request = vec![0; LONGEST];
    while let Ok(length) = device.read(&mut request) {
        let half = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let word = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap());
        let (kind, unique, node, thread) = (half(4), word(8), word(16), half(32));
        let asks = [LOOKUP, GETATTR, SETATTR, OPEN, READ, STATFS, FLUSH].contains(&kind);
        if asks && !Path::new(&format!("/proc/self/task/{thread}")).exists() {
            others.fetch_add(1, SeqCst);
        }
        let found = match kind {
            INIT => Ok(Message::default().halves(&[7, 31, 0, 0, 0, 1 << 16, 1, 0]).words(&[0; 4])),
            // Valid for no time: each look at the file is a request.
            LOOKUP if request[HEADER..length] == *b"file\0" => {
                Ok(Message::default().words(&[FILE, 0, 99, 0, 0]).facts(FILE))
            }
            GETATTR | SETATTR => Ok(Message::default().words(&[0, 0]).facts(node)),
            OPEN => Ok(Message::default().words(&[1, 0])),
            READ => {
                let (offset, bytes) = (word(HEADER + 8), u64::from(half(HEADER + 16)));
                Ok(Message(vec![0; FILE_BYTES.saturating_sub(offset).min(bytes) as usize]))
            }
            LOOKUP => Err(libc::ENOENT),
            FORGET | BATCH_FORGET => continue,
            _ => Err(libc::ENOSYS),
        };
        let (error, body) = match found {
            Ok(Message(body)) => (0, body),
            Err(error) => (-error, Vec::new()),
        };
        let mut reply =
            Message::default().halves(&[16 + body.len() as u32, error.cast_unsigned()]).words(&[unique]);
        reply.0.extend(body);
        drop(device.write(&reply.0));
    }
}

/// Mounts a file system in a namespace of this process alone. `false` if that is not permitted.
fn mount(device: &File, place: &Path) -> bool {
    let place = CString::new(place.to_str().unwrap()).unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let options = CString::new(options).unwrap();
    let (root, kind, none) = (c"/".as_ptr(), c"fuse".as_ptr(), ptr::null());
    // SAFETY: all strings live.
    unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, root, none, libc::MS_REC | libc::MS_PRIVATE, ptr::null()) == 0
            && libc::mount(kind, place.as_ptr(), kind, 0, options.as_ptr().cast()) == 0
    }
}

/// Maps, truncates and executes a file that it serves itself. Ends with how often another process, which can
/// only be the recorder, asked it for something.
pub(crate) fn maps_a_file_that_it_serves() {
    let place = tempfile::tempdir().unwrap();
    let Ok(device) = OpenOptions::new().read(true).write(true).open("/dev/fuse") else {
        leave(NOT_PERMITTED)
    };
    if !mount(&device, place.path()) {
        leave(NOT_PERMITTED);
    }
    let others = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&others);
    let server = std::thread::spawn(move || serve(device, &counted));
    let path = place.path().join("file");
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // SAFETY: a new mapping at an address of the kernel's choice, of which the pages that the file has are
    // read.
    unsafe {
        let (bytes, fd) = (FILE_AREA * PAGE, file.as_raw_fd());
        let mapped = libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0);
        assert_ne!(mapped, libc::MAP_FAILED);
        mapped.cast::<u8>().read_volatile();
        mapped.cast::<u8>().add(PAGE).read_volatile();
        assert_eq!(libc::ftruncate(fd, FILE_BYTES as i64), 0);
        // The recorder does what it does from time to time.
        nap(50_000_000);
        assert_eq!(libc::fallocate(fd, 0, 0, 1), -1);
        libc::munmap(mapped, bytes);
    }
    drop(OpenOptions::new().write(true).truncate(true).open(&path).unwrap());
    std::env::set_current_dir(place.path()).unwrap();
    drop(OpenOptions::new().write(true).truncate(true).open("file").unwrap());
    // A name of which the kernel knows nothing yet.
    assert!(OpenOptions::new().write(true).truncate(true).open("none").is_err());
    std::env::set_current_dir("/").unwrap();
    drop(file);
    let name = CString::new(path.to_str().unwrap()).unwrap();
    execute(&[&name]);
    let mounted = CString::new(place.path().to_str().unwrap()).unwrap();
    // SAFETY: the name is a live string.
    assert_eq!(unsafe { libc::umount2(mounted.as_ptr(), libc::MNT_DETACH) }, 0);
    server.join().unwrap();
    leave(others.load(SeqCst).min(9) as i32);
}
