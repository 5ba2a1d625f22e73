// MountainCar-v0 under a linear policy of 3 actions, until the flag.
// A thread to an individual, all in registers. `POPULATION` and `STEPS` are written in front.
@group(0) @binding(0) var<storage, read> genomes: array<f32>;
@group(0) @binding(1) var<storage, read> first: array<f32>;
@group(0) @binding(2) var<storage, read_write> reward: array<f32>;
@group(0) @binding(3) var<storage, read_write> last: array<f32>;

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= POPULATION {
        return;
    }
    let at = id.x * 9u;
    let by_place = vec3(genomes[at], genomes[at + 1u], genomes[at + 2u]);
    let by_velocity = vec3(genomes[at + 3u], genomes[at + 4u], genomes[at + 5u]);
    let bias = vec3(genomes[at + 6u], genomes[at + 7u], genomes[at + 8u]);
    var place = first[id.x];
    var velocity = 0.0;
    var steps = 0u;
    for (var step = 0u; step < STEPS; step++) {
        let action = place * by_place + velocity * by_velocity + bias;
        // The first of the largest.
        var push = select(-0.001, 0.0, action.y > action.x);
        push = select(push, 0.001, action.z > max(action.x, action.y));
        velocity = clamp(velocity + push - 0.0025 * cos(3.0 * place), -0.07, 0.07);
        place = clamp(place + velocity, -1.2, 0.6);
        if place <= -1.2 && velocity < 0.0 {
            velocity = 0.0;
        }
        steps += 1u;
        if place >= 0.5 && velocity >= 0.0 {
            break;
        }
    }
    reward[id.x] = -f32(steps);
    last[id.x] = place;
}
