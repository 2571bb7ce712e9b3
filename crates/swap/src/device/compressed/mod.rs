//! Pages in RAM, compressed.
//!
//! - [`CompressedStore`]: pages by slot, with [`Codec`]s, in a [`pool`] of objects. A device of compressed
//!   RAM consists of it, and a compressed cache in front of another device keeps its pages in one.
//! - [`CompressedRam`]: the device.

mod codec;
mod lz4;
mod pool;
mod ram;
mod statistics;
mod store;
mod tally;
mod workspace;

pub use codec::{CODEC_OUTPUT, Codec, Damaged};
pub use lz4::{Lz4, Lz4Workspace};
pub use ram::CompressedRam;
pub use statistics::StoreStatistics;
pub use store::CompressedStore;

use pool::MAX_OBJECT;
