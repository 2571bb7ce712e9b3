//! Tests of the store. Under `--cfg loom` only the models are built.

#[cfg(not(loom))]
mod failing;
#[cfg(not(loom))]
mod figures;
#[cfg(not(loom))]
mod model;
#[cfg(loom)]
mod models;
#[cfg(not(loom))]
mod stress;
pub(crate) mod support;
