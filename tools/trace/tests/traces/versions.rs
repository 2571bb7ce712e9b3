//! Files of the earlier versions of the format, made here byte by byte as `docs/trace-format.md` describes
//! them.

use quire_trace::event::{
    Event, EventKind, ExecGain, ExecImage, ExitStatus, FileChange, FileEvent, FileKind, HeldInMemory,
    IndexRun, PageContents, PageSample, Privileges, SizeCause, TmpfsHuge, Window,
};
use quire_trace::format::{TraceErrorKind, TraceReader, UseSource};

/// Numbers of kinds.
const CALL: u8 = 1;
const EXEC: u8 = 3;
const EXIT: u8 = 6;
const CONTENTS: u8 = 12;
const WINDOW: u8 = 13;
const FILE: u8 = 14;

/// A varint of a small number is the number.
fn small(number: u8) -> u8 {
    assert!(number < 128);
    number
}

fn string(out: &mut Vec<u8>, text: &[u8]) {
    out.push(small(text.len() as u8));
    out.extend_from_slice(text);
}

fn frame(file: &mut Vec<u8>, marker: &[u8; 4], events: u32, contents: &[u8]) {
    let mut head = [0; 36];
    let len = (contents.len() as u32).to_le_bytes();
    head[..4].copy_from_slice(marker);
    head[8..12].copy_from_slice(&len);
    head[12..16].copy_from_slice(&len);
    // Blocks have the number of their first event, which is 0, and the trailer that of all.
    head[16..24].copy_from_slice(&u64::from(if marker == b"QEND" { events } else { 0 }).to_le_bytes());
    head[24..28].copy_from_slice(&(if marker == b"QBLK" { events } else { 0 }).to_le_bytes());
    head[28..32].copy_from_slice(&crc32fast::hash(contents).to_le_bytes());
    let crc = crc32fast::hash(&head[..32]).to_le_bytes();
    head[32..].copy_from_slice(&crc);
    file.extend_from_slice(&head);
    file.extend_from_slice(contents);
}

/// The header that a version has.
fn header(version: u8) -> Vec<u8> {
    let mut out = Vec::new();
    for text in [&b"0.1"[..], b"6.18", b"x86_64"] {
        string(&mut out, text);
    }
    // A page of 4096 bytes, 2 CPUs, 16 bytes of RAM, no swap, the tracepoint, seccomp.
    out.extend([0x80, 0x20, 2, 16, 0, 0, 0]);
    if version >= 3 {
        // Uses are exact.
        out.push(2);
    }
    if version >= 4 {
        // No settings of the host.
        out.push(0);
    }
    if version >= 5 {
        // No pressure.
        out.push(0);
    }
    if version >= 9 {
        // No shown limit.
        out.push(0);
    }
    if version >= 12 {
        // 16 bytes around a fault, 32 ahead.
        out.extend([16, 1, 32]);
    }
    // Started in 7, one argument.
    out.extend([7, 1]);
    string(&mut out, b"ls");
    if version >= 7 {
        out.push(version);
    }
    out
}

/// An exec with the image that versions 1 and 2 have.
fn image(can_lock: u8) -> Vec<u8> {
    // Exec, of the same thread and CPU, at time 0. Process 5, x86-64.
    let mut out = vec![0x33, 0, 5, 0];
    string(&mut out, b"/bin/ls");
    out.push(1);
    string(&mut out, b"ls");
    // Seven addresses, no base, eight limits, 99 mappings at most, overcommit 1.
    out.extend([1, 2, 3, 4, 5, 6, 7]);
    out.push(0);
    out.extend([11, 12, 13, 14, 15, 16, 17, 18]);
    out.extend([99, 1]);
    // Minimal address 4096, personality 64, the capability, huge pages where advised, 40 bytes of tables.
    out.extend([0x80, 0x20, 64, can_lock, 1, 40]);
    // One mapping: from 16, 8 long (both signed), readable and executable, at offset 0 of file 2 on device 1,
    // flags 5, one run of 1 page at the same place.
    out.extend([1, 32, 16, 5, 0, 1, 2, 5]);
    string(&mut out, b"/bin/ls");
    out.extend([1, 0, 1, 1]);
    out
}

/// A file with one event, whose kind has this number.
fn file(version: u8, kinds: u8, kind: u8, event: &[u8]) -> Vec<u8> {
    let mut file = b"\x89QTR\r\n\x1a\n".to_vec();
    file.extend([version, 0, 0, 0]);
    frame(&mut file, b"QHDR", 0, &header(version));
    frame(&mut file, b"QBLK", 1, event);
    // One event in one block, the counts of the kinds, nothing lost, two times.
    let mut trailer = vec![1, 1, kinds];
    trailer.extend((0..kinds).map(|number| u8::from(number == kind)));
    trailer.extend([0, 7, 8]);
    let mut chain = crc32fast::hash(&crc32fast::hash(event).to_le_bytes());
    while chain >= 128 {
        trailer.push(chain as u8 | 128);
        chain >>= 7;
    }
    trailer.push(chain as u8);
    if version >= 3 {
        // The programs ended.
        trailer.push(0);
    }
    frame(&mut file, b"QEND", 1, &trailer);
    file
}

fn read(file: &[u8]) -> ExecImage {
    let mut reader = TraceReader::new(file).unwrap();
    assert_eq!((reader.header().recorder.as_str(), reader.header().started), ("0.1", 7));
    assert_eq!(reader.header().command, [(*b"ls").into()]);
    let events: Result<Vec<Event>, _> = (&mut reader).collect();
    let [event] = events.unwrap().try_into().unwrap();
    assert_eq!(reader.trailer().unwrap().events, 1);
    let EventKind::Exec(image) = event.kind else { panic!("{event:?}") };
    *image
}

#[test]
fn images_of_versions_1_and_2_are_read() {
    for (version, kinds) in [(1, 9), (2, 11)] {
        let image = read(&file(version, kinds, EXEC, &image(1)));
        assert_eq!((image.pid, image.start_brk, image.env_end), (5, 1, 7));
        assert_eq!((image.limits.address_space.soft, image.limits.locked.hard), (11, 18));
        assert_eq!((image.max_map_count, image.overcommit_memory, image.personality), (99, 1, 64));
        assert_eq!(image.page_tables, 40);
        let [mapping] = &image.mappings[..] else { panic!("{image:?}") };
        assert_eq!((mapping.start, mapping.end, mapping.read, mapping.write), (16, 24, true, false));
        assert_eq!((mapping.inode, mapping.resident.len()), (2, 1));
        // What they do not have.
        assert_eq!((image.mmap_min_addr, image.lowest_placed), (4096, 4096));
        assert_eq!(image.privileges, Privileges::ALL);
        assert_eq!(image.exec_gain, ExecGain::Allowed);
    }
    let image = read(&file(2, 11, EXEC, &image(0)));
    assert_eq!(image.privileges, Privileges::default());
}

/// Whether huge pages hid what was touched is not known of them.
#[test]
fn headers_of_versions_1_to_3_do_not_have_the_settings_of_the_host() {
    // Of the same thread and CPU, at time 0, with code 5.
    let exit = [0x30 | EXIT, 0, 0, 5];
    for (version, kinds, uses) in
        [(1, 9, UseSource::Unknown), (2, 11, UseSource::Unknown), (3, 12, UseSource::Exact)]
    {
        let file = file(version, kinds, EXIT, &exit);
        let mut reader = TraceReader::new(&file[..]).unwrap();
        let header = reader.header();
        assert_eq!((header.uses, &header.settings, header.started), (uses, &None, 7));
        assert!(header.supports_thp_predictions().is_err());
        let events: Result<Vec<Event>, _> = (&mut reader).collect();
        assert_eq!(events.unwrap()[0].kind, EventKind::Exit(ExitStatus::Code(5)));
    }
}

/// Versions 5, 6 and 8 each tell more of what pages hold, and none takes what another has.
#[test]
fn samples_of_contents_grow_with_the_versions() {
    // Of the same thread and CPU, at time 0: from 32, 64 bytes, two pages of zeros, one of 300 bytes.
    let mut counts = [0; 18];
    (counts[0], counts[3]) = (2, 1);
    let mut event = vec![0x30 | CONTENTS, 0, 32, 64];
    event.extend(counts);
    event.extend([0xac, 2]);
    let five = event.len();
    // By LZ4 and by zstd.
    event.extend([100, 90]);
    let six = event.len();
    // Pages 1, 2 and 4.
    event.extend([3, 2, 0, 0, 0, 2, 0xae, 2]);
    let eight = event.len();
    for (version, len, of_both) in [
        (5, five, [0, 0]),
        (6, six, [100, 90]),
        (7, six, [100, 90]),
        (8, eight, [100, 90]),
        (9, eight, [100, 90]),
    ] {
        let read = |len| {
            let file = file(version, 13, CONTENTS, &event[..len]);
            TraceReader::new(&file[..]).unwrap().collect::<Result<Vec<Event>, _>>()
        };
        let events = read(len).unwrap();
        let EventKind::Contents(sample) = &events[0].kind else { panic!("{events:?}") };
        assert_eq!((sample.start, sample.bytes, sample.sizes.zero, sample.compressed), (32, 64, 2, 300));
        assert_eq!(([sample.lz4_of_both, sample.zstd], sample.sizes.sizes[1]), (of_both, 1));
        let held = [(1, PageContents::Zero), (2, PageContents::Zero), (4, PageContents::Compressed(300))];
        let told = held.map(|(page, contents)| PageSample { page, contents });
        assert_eq!(sample.pages, if version >= 8 { &told[..] } else { &[] });
        for other in [five, six, eight].into_iter().filter(|other| *other != len) {
            let error = read(other).unwrap_err();
            assert!(matches!(error.kind(), TraceErrorKind::Malformed { .. }), "{version} {other}: {error}");
        }
    }
}

/// Versions before 10 have no windows, and count none.
#[test]
fn windows_are_new_in_version_10() {
    // Of the same thread and CPU, at time 0, from 5 to 9.
    let window = [0x30 | WINDOW, 0, 5, 9];
    let read = |version, kinds| {
        let file = file(version, kinds, WINDOW, &window);
        TraceReader::new(&file[..]).and_then(Iterator::collect::<Result<Vec<Event>, _>>)
    };
    let events = read(10, 14).unwrap();
    assert_eq!(events[0].kind, EventKind::Window(Window { start_ns: 5, end_ns: 9 }));
    let error = read(9, 14).unwrap_err();
    assert!(matches!(error.kind(), TraceErrorKind::Malformed { .. }), "{error}");
}

/// Versions before 11 do not say what a file in memory had.
#[test]
fn what_a_file_in_memory_had_is_new_in_version_11() {
    // Of the same thread and CPU, at time 0: mmap, of zeros, of a file in memory that is new in this block:
    // it may be read, device 1, inode 2, 3 bytes, file system 4; no attempt to map it.
    let mut call = vec![0x30 | CALL, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 3, 1, 1, 2, 3, 4];
    string(&mut call, b"/memfd:x");
    call.push(0);
    let before = call.len();
    // It had 5 bytes, and changed.
    call.extend([1, 5, 1]);
    let read = |version, len| {
        let file = file(version, 14, CALL, &call[..len]);
        TraceReader::new(&file[..]).and_then(Iterator::collect::<Result<Vec<Event>, _>>)
    };
    for (version, len, held) in
        [(10, before, None), (11, call.len(), Some(HeldInMemory { bytes: 5, changed: true }))]
    {
        let events = read(version, len).unwrap();
        let EventKind::Call(call) = &events[0].kind else { panic!("{events:?}") };
        let file = call.file().expect("a file");
        assert_eq!((file.kind, &*file.name, file.held), (FileKind::Memory, &b"/memfd:x"[..], held));
    }
    for (version, len) in [(10, call.len()), (11, before)] {
        let error = read(version, len).unwrap_err();
        assert!(matches!(error.kind(), TraceErrorKind::Malformed { .. }), "{version}: {error}");
    }
}

/// Versions before 12 know nothing of the lengths of files, of what is cached and of what Linux reads.
#[test]
fn what_is_known_of_files_is_new_in_version_12() {
    let size = |cause| FileChange::Size { bytes: 9, cause };
    let changes: [(&[u8], FileChange); 5] = [
        (&[0, 9], size(SizeCause::Call)),
        (&[1, 9], size(SizeCause::Seen)),
        (&[2, 5, 4], FileChange::Punched(5..9)),
        (&[3, 2, 0, 1, 4, 2], FileChange::Cached(vec![run(0, 1), run(5, 2)])),
        (&[4, 1, 7, 3], FileChange::Evicted(vec![run(7, 3)])),
    ];
    for (bytes, change) in changes {
        // Of the same thread and CPU, at time 0: device 6, inode 7.
        let event = [&[0x30 | FILE, 0, 6, 7], bytes].concat();
        let file = |version, kinds| file(version, kinds, FILE, &event);
        let new = file(12, 15);
        let mut reader = TraceReader::new(&new[..]).unwrap();
        assert_eq!((reader.header().fault_around, reader.header().read_ahead), (16, Some(32)));
        let events = (&mut reader).collect::<Result<Vec<Event>, _>>().unwrap();
        assert_eq!(events[0].kind, EventKind::File(Box::new(FileEvent { device: 6, inode: 7, change })));
        let old = file(11, 15);
        let mut reader = TraceReader::new(&old[..]).unwrap();
        assert_eq!((reader.header().fault_around, reader.header().read_ahead), (64 << 10, None));
        let error = (&mut reader).collect::<Result<Vec<Event>, _>>().unwrap_err();
        assert!(matches!(error.kind(), TraceErrorKind::Malformed { .. }), "{error}");
    }
}

/// Versions before 13 do not say how large folios of a file system in memory may be, nor that a file ended.
#[test]
fn options_of_mounts_and_ends_of_files_are_new_in_version_13() {
    // As above; no attempt to map it, and nothing is known of what it had.
    let mut call = vec![0x30 | CALL, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 3, 1, 1, 2, 3, 4];
    string(&mut call, b"/dev/shm/x");
    call.extend([0, 0]);
    let before = call.len();
    call.extend([1, 2]);
    let read = |version, kind, event: &[u8]| {
        let file = file(version, 15, kind, event);
        TraceReader::new(&file[..]).and_then(Iterator::collect::<Result<Vec<Event>, _>>)
    };
    for (version, len, huge) in [(12, before, None), (13, call.len(), Some(TmpfsHuge::WithinSize))] {
        let events = read(version, CALL, &call[..len]).unwrap();
        let EventKind::Call(call) = &events[0].kind else { panic!("{events:?}") };
        assert_eq!(call.file().expect("a file").mount_huge, huge);
    }
    assert!(read(12, CALL, &call).is_err() && read(13, CALL, &call[..before]).is_err());
    let gone = [0x30 | FILE, 0, 6, 7, 5];
    let events = read(13, FILE, &gone).unwrap();
    let change = FileChange::Gone;
    assert_eq!(events[0].kind, EventKind::File(Box::new(FileEvent { device: 6, inode: 7, change })));
    assert!(read(12, FILE, &gone).is_err());
}

fn run(first: u64, pages: u64) -> IndexRun {
    IndexRun { first, pages }
}

#[test]
fn an_old_image_in_a_new_file_is_malformed() {
    let kinds = EventKind::COUNT as u8;
    let file = file(3, kinds, EXEC, &image(1));
    let error = TraceReader::new(&file[..]).and_then(Iterator::collect::<Result<Vec<Event>, _>>).unwrap_err();
    assert!(matches!(error.kind(), TraceErrorKind::Malformed { .. }), "{error}");
}
