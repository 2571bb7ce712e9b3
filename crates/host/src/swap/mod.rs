//! Swap devices for machines in a process.

mod slow;

pub use slow::{Answers, SlowConfig, SlowDevice};
