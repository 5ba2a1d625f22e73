@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read> next: array<u32>;
@group(0) @binding(2) var<storage, read_write> place: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var at = place[0] & turns[2];
    let n = turns[0];
    storageBarrier();
    for (var i = 0u; i < n; i++) {
        at = next[at];
    }
    if (id.x == 0u) { place[0] = at; }
}
