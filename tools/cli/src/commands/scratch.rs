//! Recordings that are kept for as long as a command runs.

use quire_trace::format::EXTENSION;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A file without a name, which is removed when the command ends in any way.
pub(crate) fn scratch() -> io::Result<Arc<File>> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("quire-{}-{number}.{EXTENSION}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(path)?;
    Ok(Arc::new(file))
}
