//! Web pages: one thread and no std clock. The browser validates and compiles kernels, and calls callbacks without polling.

use crate::bind::Bound;
use crate::error::RunError;
use crate::gpu::{Gpu, instance};
use crate::kernel::{Checks, Guard, Pipeline, compile};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use wgfc_program::Program;
use wgfc_program::program::Kernel;
use wgfc_program::tensor::ByteOwner;

pub(crate) use crate::upload::through_queue as upload;

/// The size in bytes of the pieces into which an upload is split, a multiple of 4.
pub(crate) const PIECE: usize = 8 << 20;

/// The only adapter that the browser offers.
pub(crate) async fn adapters() -> Vec<wgpu::Adapter> {
    let options = wgpu::RequestAdapterOptions {
        power_preference: wgpu::PowerPreference::HighPerformance,
        ..Default::default()
    };
    instance(wgpu::Backends::BROWSER_WEBGPU).request_adapter(&options).await.into_iter().collect()
}

/// Always `false`: the device-lost callback of the device's owner calls [`Gpu::report_lost`] instead.
pub(crate) fn is_lost(_: &wgpu::Device) -> bool {
    false
}

/// Unknown: browsers do not say it.
pub(crate) fn memory(_: &wgpu::Device) -> Option<u64> {
    None
}

pub(crate) fn poll(_: &wgpu::Device, _: Option<wgpu::SubmissionIndex>) -> Result<(), wgpu::PollError> {
    Ok(())
}

pub(crate) fn now() -> Option<Instant> {
    None
}

pub(crate) async fn both<A, B>(
    compile: impl AsyncFnOnce() -> Result<A, RunError>,
    other: impl AsyncFnOnce() -> B,
) -> (Result<A, RunError>, B) {
    (compile().await, other().await)
}

pub(crate) async fn compile_each(gpu: &Gpu, kernels: &[(&Kernel, Guard)]) -> Result<Vec<Pipeline>, RunError> {
    let mut out = Vec::with_capacity(kernels.len());
    for (k, guard) in kernels {
        out.push(compile(gpu, k, *guard).await?);
    }
    Ok(out)
}

pub(crate) fn wgsl(text: &str) -> Cow<'_, str> {
    text.into()
}

pub(crate) fn check_text(_: &Kernel) -> Vec<String> {
    Vec::new()
}

pub(crate) fn copied(bytes: &[u8]) -> Arc<dyn ByteOwner> {
    Arc::new(bytes.to_vec())
}

/// No pool: the queue has its own staging memory.
#[derive(Default)]
pub(crate) struct Pool;

impl Pool {
    pub(crate) fn clear(&self) {}
}

/// No replacements: browsers do not end loops early.
#[derive(Clone, Debug, Default)]
pub(crate) struct Longer;

impl Longer {
    pub(crate) async fn pipelines(
        &mut self,
        _: &Gpu,
        _: &Program,
        _: Checks,
        _: &Bound,
    ) -> Result<BTreeMap<usize, Pipeline>, RunError> {
        Ok(BTreeMap::new())
    }
}
