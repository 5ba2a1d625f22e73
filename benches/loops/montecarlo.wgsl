// How many of a worker's points of the unit square lie in the unit circle; PCG-RXS-M-XS of 32 bits.
// A thread to a worker. `POPULATION` and `STEPS` are written in front.
@group(0) @binding(0) var<storage, read> seeds: array<u32>;
@group(0) @binding(1) var<storage, read_write> inside: array<u32>;
@group(0) @binding(2) var<storage, read_write> last: array<u32>;

fn next(state: u32) -> u32 {
    return state * 747796405u + 2891336453u;
}

fn unit(state: u32) -> f32 {
    let word = ((state >> ((state >> 28u) + 4u)) ^ state) * 277803737u;
    return f32(((word >> 22u) ^ word) >> 8u) * 5.9604644775390625e-8;
}

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= POPULATION {
        return;
    }
    var state = seeds[id.x];
    var count = 0u;
    for (var step = 0u; step < STEPS; step++) {
        let second = next(state);
        let x = unit(state);
        let y = unit(second);
        state = next(second);
        count += select(0u, 1u, x * x + y * y <= 1.0);
    }
    inside[id.x] = count;
    last[id.x] = state;
}
