//! Buffers, pipelines and dispatches in wgpu.

use super::Tensors;
use super::plan::{Kernel, Kind, Plan, Symbols};
use std::error::Error;
use wgpu::BufferUsages as Usage;

/// A function that returns the bytes of a weight.
type Weights<'a> = &'a dyn Fn(&str) -> Result<Vec<u8>, Box<dyn Error>>;

pub struct Device {
    device: wgpu::Device,
    queue: wgpu::Queue,
}

impl Device {
    /// Opens the adapter whose name contains `WGPU_ADAPTER_NAME`, or else the first one, with all its limits.
    pub async fn open() -> Result<Device, Box<dyn Error>> {
        let instance = wgpu::Instance::default();
        let adapter = wgpu::util::initialize_adapter_from_env_or_default(&instance, None).await?;
        let wanted = wgpu::Features::SHADER_F16 | wgpu::Features::SUBGROUP;
        let (device, queue) = adapter
            .request_device(&wgpu::DeviceDescriptor {
                required_features: adapter.features() & wanted,
                required_limits: adapter.limits(),
                ..Default::default()
            })
            .await?;
        Ok(Device { device, queue })
    }

    /// Runs a plan once; `weight` returns the bytes of a weight. Every buffer has its own memory here;
    /// buffers of an arena could share it.
    pub fn run(
        &self,
        plan: &Plan,
        weight: Weights,
        symbols: &Symbols,
        inputs: &Tensors,
    ) -> Result<Tensors, Box<dyn Error>> {
        for c in &plan.constraints {
            if c.a.value(symbols)? != c.b.value(symbols)? {
                return Err(format!("node `{}` does not take these sizes", c.node).into());
            }
        }
        let mut buffers = vec![];
        for (i, b) in plan.buffers.iter().enumerate() {
            let size = plan.bytes(i, symbols)?.next_multiple_of(4).max(16) as u64;
            // New buffers are zero, as outputs and states without initial contents require.
            let buffer = self.buffer(size, Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST);
            match &b.kind {
                Kind::Weight { name } => self.fill(&buffer, &weight(name)?)?,
                Kind::Input { index } => {
                    let port = &plan.inputs[*index];
                    match inputs.get(&port.name) {
                        Some(data) => self.fill(&buffer, data)?,
                        None if port.broadcast.is_some() => {}
                        None => return Err(format!("input `{}` is missing", port.name).into()),
                    }
                }
                Kind::State { name } => {
                    let state = plan.states.iter().find(|s| s.name == *name);
                    if let Some(initial) = state.and_then(|s| s.initial.as_ref()) {
                        self.fill(&buffer, &weight(initial)?)?;
                    }
                }
                Kind::Output {} | Kind::Arena {} => {}
            }
            buffers.push(buffer);
        }
        let dims: Result<Vec<[u8; 4]>, Box<dyn Error>> = plan
            .symbols
            .iter()
            .map(|s| Ok(i32::try_from(*symbols.get(s).ok_or("a symbol has no value")?)?.to_le_bytes()))
            .collect();
        let dims = dims?.concat();
        let uniform =
            self.buffer(dims.len().next_multiple_of(16).max(16) as u64, Usage::UNIFORM | Usage::COPY_DST);
        self.fill(&uniform, &dims)?;

        let pipelines: Vec<_> = plan.kernels.iter().map(|k| self.pipeline(k)).collect();
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for i in plan.order(symbols)? {
            let d = &plan.dispatches[i];
            let mut groups = [0; 3];
            for (g, size) in groups.iter_mut().zip(&d.workgroups) {
                *g = u32::try_from(size.value(symbols)?)?;
            }
            if groups.contains(&0) {
                continue;
            }
            let mut bound: Vec<&wgpu::Buffer> = d.bindings.iter().map(|b| &buffers[*b]).collect();
            if plan.kernels[d.kernel].uses_dims {
                bound.push(&uniform);
            }
            let entries: Vec<_> = (0..)
                .zip(&bound)
                .map(|(binding, b)| wgpu::BindGroupEntry { binding, resource: b.as_entire_binding() })
                .collect();
            let (pipeline, layout) = &pipelines[d.kernel];
            let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout,
                entries: &entries,
            });
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, &group, &[]);
            pass.dispatch_workgroups(groups[0], groups[1], groups[2]);
        }
        drop(pass);
        let mut read = vec![];
        for p in &plan.outputs {
            let from = &buffers[p.buffer];
            let to = self.buffer(from.size(), Usage::MAP_READ | Usage::COPY_DST);
            encoder.copy_buffer_to_buffer(from, 0, &to, 0, from.size());
            read.push((p, to));
        }
        self.queue.submit([encoder.finish()]);
        for (_, buffer) in &read {
            buffer.map_async(wgpu::MapMode::Read, .., |_| {});
        }
        self.device.poll(wgpu::PollType::Wait { submission_index: None, timeout: None })?;
        let mut outputs = Tensors::new();
        for (p, buffer) in read {
            let mut bytes = buffer.get_mapped_range(..)?.to_vec();
            bytes.truncate(plan.bytes(p.buffer, symbols)?);
            outputs.insert(p.name.clone(), bytes);
        }
        Ok(outputs)
    }

    fn buffer(&self, size: u64, usage: Usage) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage,
            mapped_at_creation: false,
        })
    }

    /// Writes whole words, the last one padded with zeros.
    fn fill(&self, buffer: &wgpu::Buffer, data: &[u8]) -> Result<(), Box<dyn Error>> {
        let mut words = data.to_vec();
        words.resize(data.len().next_multiple_of(4), 0);
        if words.len() as u64 > buffer.size() {
            return Err(format!("{} bytes do not fit into {}", data.len(), buffer.size()).into());
        }
        self.queue.write_buffer(buffer, 0, &words);
        Ok(())
    }

    /// Derives the layout from the plan's description of the kernel.
    fn pipeline(&self, k: &Kernel) -> (wgpu::ComputePipeline, wgpu::BindGroupLayout) {
        let storage = |access: &String| wgpu::BufferBindingType::Storage { read_only: access == "read" };
        let types =
            k.bindings.iter().map(storage).chain(k.uses_dims.then_some(wgpu::BufferBindingType::Uniform));
        let entries: Vec<_> = (0..)
            .zip(types)
            .map(|(binding, ty)| wgpu::BindGroupLayoutEntry {
                binding,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
                count: None,
            })
            .collect();
        let layout = self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(&k.name),
            entries: &entries,
        });
        let pipeline_layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(&k.name),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        // naga supports subgroups without the directive that the WGSL standard requires.
        let text = k.wgsl.replace("enable subgroups;", "");
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(&k.name),
            source: wgpu::ShaderSource::Wgsl(text.into()),
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&k.name),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: Default::default(),
            cache: None,
        });
        (pipeline, layout)
    }
}
