// MountainCar-v0 under a network of 2 → 8 tanh → 3, until the flag.
// A thread to an individual, its genes copied to memory of its own. `POPULATION` and `STEPS` are written in front.
@group(0) @binding(0) var<storage, read> genomes: array<f32>;
@group(0) @binding(1) var<storage, read> first: array<f32>;
@group(0) @binding(2) var<storage, read_write> reward: array<f32>;
@group(0) @binding(3) var<storage, read_write> last: array<f32>;

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= POPULATION {
        return;
    }
    var g: array<f32, 51>;
    for (var i = 0u; i < 51u; i++) {
        g[i] = genomes[id.x * 51u + i];
    }
    var place = first[id.x];
    var velocity = 0.0;
    var steps = 0u;
    for (var step = 0u; step < STEPS; step++) {
        var action = vec3(g[48], g[49], g[50]);
        for (var i = 0u; i < 8u; i++) {
            let h = tanh(place * g[i] + velocity * g[8u + i] + g[16u + i]);
            action += h * vec3(g[24u + 3u * i], g[25u + 3u * i], g[26u + 3u * i]);
        }
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
