@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read> data: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) id: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let n = turns[0];
    var sum = vec4(0.0);
    for (var i = 0u; i < n; i++) {
        let first = ((i + group.x) & 15u) * 4096u + id;
        for (var j = 0u; j < 4096u; j += 1024u) {
            sum += data[first + j] + data[first + j + 256u] + data[first + j + 512u] + data[first + j + 768u];
        }
    }
    if (dot(sum, sum) == 12345.0) { out[0] = sum.x; }
}
