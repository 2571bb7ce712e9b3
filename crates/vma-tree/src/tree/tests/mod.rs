//! Tests of the tree. Under `--cfg loom` only the models are built.

#[cfg(not(loom))]
mod edges;
#[cfg(not(loom))]
mod failing;
#[cfg(not(loom))]
mod full;
#[cfg(not(loom))]
mod model;
#[cfg(loom)]
mod models;
#[cfg(not(loom))]
mod stress;
mod support;
