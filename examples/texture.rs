//! Draws what a model computes, on a device that the program has already: the model's kernels and the program's render pass are
//! recorded into one encoder, and the vertex shader reads the model's output where it lies. Nothing is copied through the host.
//!
//!     cargo run --example texture
//!
//! Headless, so that tests run it; a program with a window draws into the surface's texture instead.

use std::error::Error;
use std::path::Path;
use wgfc::runtime::session::Value;
use wgfc::runtime::{AdapterChoice, AdapterSummary, Gpu, Requirements, Session};
use wgfc::wgpu;
use wgfc::{DType, Options, Tensor};

/// The number of pixels along a side of the texture.
pub const SIDE: u32 = 64;

/// Draws each body as one pixel of x and y from −2 to 2.
const DRAW: &str = "
@group(0) @binding(0) var<storage, read> position: array<f32>;

@vertex
fn at(@builtin(vertex_index) body: u32) -> @builtin(position) vec4<f32> {
    return vec4(position[3u * body] / 2.0, position[3u * body + 1u] / 2.0, 0.0, 1.0);
}

@fragment
fn white() -> @location(0) vec4<f32> {
    return vec4(1.0);
}
";

/// The host program's engine: an adapter, a device, a pipeline and a texture, none of which depends on the
/// model.
pub struct Engine {
    adapter: wgpu::Adapter,
    device: wgpu::Device,
    queue: wgpu::Queue,
    pipeline: wgpu::RenderPipeline,
    texture: wgpu::Texture,
}

impl Engine {
    /// Opens the adapter that `WGFC_ADAPTER` names, with the features and limits that the model needs in
    /// addition to the engine's.
    fn open(needs: &Requirements) -> Result<Engine, Box<dyn Error>> {
        let instance = wgpu::Instance::default();
        let mut adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
        let summaries: Vec<AdapterSummary> = adapters.iter().map(AdapterSummary::of).collect();
        let chosen = AdapterChoice::from_env().pick(&summaries).ok_or("there is no adapter")?;
        let adapter = adapters.swap_remove(chosen);
        // An error here says which features and limits the adapter lacks.
        needs.check(adapter.features(), &adapter.limits())?;
        let (device, queue) = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("engine"),
            required_features: needs.features,
            required_limits: needs.limits(wgpu::Limits::default()),
            ..Default::default()
        }))?;
        let format = wgpu::TextureFormat::R8Unorm;
        let texture = device.create_texture(&wgpu::TextureDescriptor {
            label: Some("picture"),
            size: wgpu::Extent3d { width: SIDE, height: SIDE, depth_or_array_layers: 1 },
            mip_level_count: 1,
            sample_count: 1,
            dimension: wgpu::TextureDimension::D2,
            format,
            usage: wgpu::TextureUsages::RENDER_ATTACHMENT | wgpu::TextureUsages::COPY_SRC,
            view_formats: &[],
        });
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some("draw"),
            source: wgpu::ShaderSource::Wgsl(DRAW.into()),
        });
        let pipeline = device.create_render_pipeline(&wgpu::RenderPipelineDescriptor {
            label: Some("draw"),
            layout: None,
            vertex: wgpu::VertexState {
                module: &module,
                entry_point: Some("at"),
                compilation_options: Default::default(),
                buffers: &[],
            },
            primitive: wgpu::PrimitiveState {
                topology: wgpu::PrimitiveTopology::PointList,
                ..Default::default()
            },
            depth_stencil: None,
            multisample: Default::default(),
            fragment: Some(wgpu::FragmentState {
                module: &module,
                entry_point: Some("white"),
                compilation_options: Default::default(),
                targets: &[Some(format.into())],
            }),
            multiview_mask: None,
            cache: None,
        });
        Ok(Engine { adapter, device, queue, pipeline, texture })
    }

    /// A storage buffer of the engine that holds these numbers.
    fn buffer(&self, label: &str, values: &[f32]) -> wgpu::Buffer {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let size = 4 * values.len() as u64;
        let d = wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false };
        let buffer = self.device.create_buffer(&d);
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.queue.write_buffer(&buffer, 0, &bytes);
        buffer
    }

    /// Records a render pass that draws bodies whose positions are in a buffer.
    fn draw(&self, encoder: &mut wgpu::CommandEncoder, positions: &wgpu::Buffer, bodies: u32) {
        let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("positions"),
            layout: &self.pipeline.get_bind_group_layout(0),
            entries: &[wgpu::BindGroupEntry { binding: 0, resource: positions.as_entire_binding() }],
        });
        let view = self.texture.create_view(&Default::default());
        let mut pass = encoder.begin_render_pass(&wgpu::RenderPassDescriptor {
            label: Some("bodies"),
            color_attachments: &[Some(wgpu::RenderPassColorAttachment {
                view: &view,
                depth_slice: None,
                resolve_target: None,
                ops: wgpu::Operations {
                    load: wgpu::LoadOp::Clear(wgpu::Color::BLACK),
                    store: wgpu::StoreOp::Store,
                },
            })],
            ..Default::default()
        });
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.draw(0..bodies, 0..1);
    }

    /// The texture's bytes, row by row. Only tests need them on the host.
    fn read(&self) -> Result<Vec<u8>, Box<dyn Error>> {
        let pitch = SIDE.next_multiple_of(wgpu::COPY_BYTES_PER_ROW_ALIGNMENT);
        let size = u64::from(pitch * SIDE);
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let d = wgpu::BufferDescriptor { label: Some("read"), size, usage, mapped_at_creation: false };
        let to = self.device.create_buffer(&d);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let layout =
            wgpu::TexelCopyBufferLayout { offset: 0, bytes_per_row: Some(pitch), rows_per_image: None };
        let into = wgpu::TexelCopyBufferInfo { buffer: &to, layout };
        encoder.copy_texture_to_buffer(self.texture.as_image_copy(), into, self.texture.size());
        self.queue.submit([encoder.finish()]);
        to.map_async(wgpu::MapMode::Read, .., |_| {});
        self.device.poll(wgpu::PollType::wait_indefinitely())?;
        let rows = to.get_mapped_range(..)?;
        Ok(rows.chunks(pitch as usize).flat_map(|row| row[..SIDE as usize].to_vec()).collect())
    }
}

/// Positions and velocities of bodies on a circle, and their masses.
pub fn bodies() -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let n = 7;
    let angle = |i: usize| i as f32 * std::f32::consts::TAU / n as f32;
    let position = (0..n).flat_map(|i| [angle(i).cos(), angle(i).sin(), 0.0]).collect();
    let velocity = (0..n).flat_map(|i| [-angle(i).sin(), angle(i).cos(), 0.0]).collect();
    (position, velocity, vec![0.2; n])
}

/// Moves bodies with a model for some frames and draws each frame. Returns the last picture, row by row.
pub fn draw(frames: usize) -> Result<Vec<u8>, Box<dyn Error>> {
    // One step of the motion of bodies, from f32[bodies, 3] positions and velocities and f32[bodies] masses.
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/simulations/nbody/model.onnx");
    let values = [("steps".to_owned(), Tensor::from_i64(vec![], &[1]))].into();
    // Compiled for any device: the plan states which features and limits it needs.
    let program = wgfc::compile_file(&path, &Options { values, ..Options::default() })?;
    let engine = Engine::open(&Requirements::of(&program))?;

    let gpu = Gpu::from_wgpu(&engine.adapter, engine.device.clone(), engine.queue.clone());
    let mut model = Session::new_blocking(&gpu, &program)?;
    let (position, velocity, mass) = bodies();
    let n = mass.len();
    // Buffers of the engine are used as inputs without a copy.
    let adopt = |label: &str, values: &[f32], shape: Vec<usize>| {
        gpu.adopt(engine.buffer(label, values).slice(..), DType::F32, shape)
    };
    let mut position = adopt("position", &position, vec![n, 3])?;
    let mut velocity = adopt("velocity", &velocity, vec![n, 3])?;
    let mass = adopt("mass", &mass, vec![n])?;
    for _ in 0..frames {
        let mut encoder = engine.device.create_command_encoder(&Default::default());
        let inputs = [
            ("position", Value::from(position)),
            ("velocity", velocity.into()),
            ("mass", mass.clone().into()),
        ];
        let run = model.encode_blocking(&mut encoder, &inputs, &[])?;
        let output = |name: &str| run.output(name).cloned().ok_or("the model has this output");
        (position, velocity) = (output("last")?, output("speed")?);
        engine.draw(&mut encoder, position.buffer(), n as u32);
        // The engine's only submission of the frame.
        engine.queue.submit([encoder.finish()]);
    }
    engine.read()
}

/// Prints every second row of the picture after 40 frames.
pub fn main() -> Result<(), Box<dyn Error>> {
    let picture = draw(40)?;
    for row in picture.chunks(SIDE as usize).step_by(2) {
        println!("{}", row.iter().map(|p| if *p > 0 { '●' } else { '·' }).collect::<String>());
    }
    Ok(())
}
