@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
var<workgroup> shared_: array<f32, 256>;
@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) id: u32) {
    let n = turns[0];
    shared_[id] = f32(id);
    for (var i = 0u; i < n; i++) {
        workgroupBarrier();
        shared_[(id + 1u) & 255u] += 1.0;
    }
    if (shared_[id] == -1.0) { out[0] = 1.0; }
}
