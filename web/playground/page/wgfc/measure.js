import{WgfcError as le}from"./index.js";var he="Chrome and Edge have it since version 113, on Android since 121; Safari since 26; Firefox since 141, first on Windows";function z(i){return new le("no-webgpu",`there is no WebGPU: ${ge(i)}`)}function ge({api:i,secure:e,agent:r}){let n=/Linux/.test(r)&&!/Android/.test(r);if(!i&&e===!1)return"browsers give it to secure pages alone: serve this page by https, or from localhost";if(!i)return`this browser has none, or it is turned off. ${he}${n?". In Chrome for Linux it may need chrome://flags/#enable-unsafe-webgpu":""}`;let t=/Firefox/.test(r)?"about:support":/Chrome|Edg/.test(r)?"chrome://gpu":void 0,o=n?"; Chrome for Linux may need to be started with --enable-unsafe-webgpu --enable-features=Vulkan":"";return`the browser finds no adapter: the GPU or its driver is missing or blocked${t?`, which ${t} tells`:""}. Update the driver, and turn hardware acceleration on${o}`}function N(){let{navigator:i,isSecureContext:e}=globalThis;return{api:!!i?.gpu,secure:e,agent:i?.userAgent??""}}var be={bandwidth:28e11,flops_f32:57344e9,flops_f16:114688e9,flops_matrix:448e12,dispatch_cost:4e-6,cores:128,resident:262144,memory_latency:600,operation:15e-10,barrier:4e-8,workgroup_bandwidth:6e10,cache_bandwidth:3e13,resident_workgroups:1,exchange:15e-7},we={bandwidth:7e10,flops_f32:24e11,flops_f16:48e11,flops_matrix:48e11,dispatch_cost:8e-6,cores:8,resident:16384,memory_latency:400,operation:3e-9,barrier:8e-8,workgroup_bandwidth:3e10,cache_bandwidth:6e11,resident_workgroups:1,exchange:3e-6},ye={bandwidth:11e8,flops_f32:66e9,flops_f16:13e9,flops_matrix:13e9,dispatch_cost:17e-6,cores:1,resident:64,memory_latency:30,operation:9e-9,barrier:16e-7,workgroup_bandwidth:61e8,cache_bandwidth:62e8,resident_workgroups:1,exchange:5e-6},ve={bandwidth:21e8,flops_f32:125e8,flops_f16:125e8,flops_matrix:125e8,dispatch_cost:17e-6,cores:1,resident:64,memory_latency:17,operation:21e-9,barrier:103e-7,workgroup_bandwidth:18e8,cache_bandwidth:21e8,resident_workgroups:1,exchange:2e-5},xe={discrete:be,integrated:we,software:ye,swiftshader:ve},Pe=["apple","arm","broadcom","img-tec","imagination","intel","qualcomm","samsung"];function P(i){let{vendor:e="",architecture:r="",description:n=""}=i??{};return/swiftshader/i.test(`${r} ${n}`)?"swiftshader":i?.isFallbackAdapter||/llvmpipe|lavapipe|basic render/i.test(`${r} ${n}`)?"software":e==="nvidia"?"discrete":Pe.includes(e)?"integrated":void 0}function _(i){let e=P(i);return e&&xe[e]}function _e(i){return"adapterInfo"in i?i.adapterInfo:i.info}function q(i){let e=_e(i),r=_(e),{subgroupMinSize:n,subgroupMaxSize:t}=e??{};return{...Se(i.limits,i.features,n===t?n:void 0),...r?{speeds:r}:{}}}function Se(i,e,r){let n=new Set(e),t={f16:n.has("shader-f16")},o=(a,...u)=>{let s=u.filter(c=>c!==void 0);s.length&&(t[a]=Math.min(...s))};return o("max_storage_buffers",i.maxStorageBuffersPerShaderStage),o("max_invocations",i.maxComputeInvocationsPerWorkgroup),o("max_workgroup_bytes",i.maxComputeWorkgroupStorageSize),o("max_binding_bytes",i.maxStorageBufferBindingSize,i.maxBufferSize),o("max_workgroups",i.maxComputeWorkgroupsPerDimension),r&&n.has("subgroups")&&(t.subgroup=r),{version:1,limits:t}}var ke=async i=>i===!1?void 0:globalThis.caches?.open(i===!0?"wgfc":i);function Ge({vendor:i,architecture:e,device:r,description:n}){let t=[1,i,e,r,n,globalThis.navigator?.userAgent??""];return`https://wgfc.invalid/speeds?${encodeURIComponent(t.join("|"))}`}async function $(i,e,r=!0){await(await ke(r).catch(()=>{}))?.put(Ge(i),new Response(JSON.stringify(e))).catch(()=>{})}import{WgfcError as We}from"./index.js";import{WgfcError as Ee}from"./index.js";function Ae(i){return new Ee("aborted","aborted by the caller's signal",{cause:i.reason})}function j(i){if(i?.aborted)throw Ae(i)}var F=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let n = turns[0];
    let a = vec4(T(turns[1]));
    var p = vec4(T(id.x & 255u));
    var q = p + 1.0;
    var r = p + 2.0;
    var s = p + 3.0;
    for (var i = 0u; i < n; i++) {
        p = fma(p, a, a); q = fma(q, a, a); r = fma(r, a, a); s = fma(s, a, a);
        p = fma(p, a, a); q = fma(q, a, a); r = fma(r, a, a); s = fma(s, a, a);
    }
    let sum = dot(p + q, r + s);
    if (sum == 12345.0) { out[0] = f32(sum); }
}
`;var V=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
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
`;var H=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
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
`;var Q=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let n = turns[0];
    let a = f32(turns[1]);
    var x = f32(id.x);
    for (var i = 0u; i < n; i++) {
        x = fma(x, a, a); x = fma(x, a, a); x = fma(x, a, a); x = fma(x, a, a);
        x = fma(x, a, a); x = fma(x, a, a); x = fma(x, a, a); x = fma(x, a, a);
    }
    if (x == 12345.0) { out[0] = x; }
}
`;var Y=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
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
`;var J=`@group(0) @binding(0) var<storage, read> src: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> dst: array<vec4<f32>>;
// Thread t of T copies the elements t, t + T, t + 2T, \u2026.
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let stride = groups.x * 256u;
    let n = arrayLength(&src);
    for (var i = id.x; i < n; i += stride) {
        dst[i] = src[i];
    }
}
`;var K=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read_write> next: array<u32>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = id.x; i < turns[2]; i += groups.x * 256u) {
        next[i] = (i + turns[3]) & (turns[2] - 1u);
    }
}
`;var X=`@group(0) @binding(0) var<storage, read_write> data: array<f32, 256>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    data[id.x] += 1.0;
}
`;var ze=32768,Ne=16,S=4,k=4,qe=150,$e=1.1,je=.65,Fe=64,Z=["warming up","latencies","arithmetic","cores","caches","memory","dispatches"];async function kr(i,e={}){let{cache:r=!0,signal:n}=e,t=i&&"queue"in i?i:void 0,o=t?void 0:i??await navigator.gpu?.requestAdapter({powerPreference:"high-performance"});if(!t&&!o)throw z(N());let a=["timestamp-query","shader-f16"].filter(f=>o?.features.has(f)),u=t??await o.requestDevice({requiredFeatures:a}),s=t?t.adapterInfo:o.info;u.pushErrorScope("out-of-memory"),u.pushErrorScope("validation");let c,d=new G(u,["software","swiftshader"].includes(P(s)??""),n);try{let f=await d.speeds(h=>e.onProgress?.({stage:Z[h],done:h,total:Z.length})),p={...q(t??o),device:Ve(s),speeds:{..._(s),...f}};return r!==!1&&await $(s,p.speeds,r),p}finally{c=await Promise.all([0,1].map(()=>u.popErrorScope().catch(()=>null))),d.dispose(),t||u.destroy();let f=c.find(p=>p);if(f)throw new We("validation",`measuring: ${f.message}`)}}function Ve(i){return[i.vendor,i.architecture,i.device,i.description].filter(Boolean).join(" ")}var G=class{#e;#a;#m;#s=[];#u;#l;#i;constructor(e,r,n){if([this.#e,this.#a,this.#m]=[e,r,n],this.#u=this.#t(256),this.#i=e.features.has("timestamp-query"),!this.#i)return;let t=o=>(this.#s.push(o),o);this.#l={set:t(e.createQuerySet({type:"timestamp",count:2})),ticks:t(e.createBuffer({size:16,usage:516})),read:t(e.createBuffer({size:16,usage:9}))}}dispose(){for(let e of this.#s)e.destroy()}async speeds(e){let{limits:r,features:n}=this.#e;e(0);let[t,o]=["f32","f16"].map(m=>F.replaceAll("T(",`${m}(`)),a=[Q,t,V,K,Y,H,J,X,...n.has("shader-f16")?[`enable f16;
${o}`]:[]],u=await Promise.all(a.map(m=>this.#h(m))),[s,c,d,f,p,h,re,te,E]=u,g=this.#a,A=Math.min(r.maxStorageBufferBindingSize,r.maxBufferSize),ne=m=>2**Math.floor(Math.log2(Math.min(m,A))),[w,I,U,ie]=[256,256,4096,1<<20].map(m=>this.#t(m)),M=this.#t(ne(g?8<<20:128<<20)),l=(m,...b)=>this.#c(m,[this.#u,...b]);for(let m of[M,U]){let b=m.size/4;this.#n(1,1,b,4127%b|1),await this.#f(l(f,m),g?8:1024,1)}this.#n(1,1,4294967295,0);let v=l(c,w),y=g?64:4096;await this.#b(v,y),e(1);let oe=await this.#r(l(s,w),1)/8,ae=await this.#r(l(d,w),1),se=await this.#r(l(p,M,I),1);e(2);let[ue,B]=[await this.#r(v,1),await this.#r(v,y)],O=y*256*Fe,x=O/B,R=E?O/await this.#r(l(E,w),y):x;e(3);let T=Math.max(1,y*ue/B);this.#n(1,1,0,0);let ce=64*await this.#w(l(p,U,I),g?256:16384);e(4);let D=l(h,ie,w),L=g?16:2048,C=65536/await this.#r(D,1),de=L*65536/await this.#r(D,L);e(5);let W=await this.#y(re,Math.min(A,g?16<<20:128<<20));e(6);let fe=await this.#v(this.#c(te,[this.#t(1024)])),pe=T*256/x,me={bandwidth:W,flops_f32:x,flops_f16:R,flops_matrix:R,dispatch_cost:fe,cores:T,resident:ce,memory_latency:se/pe,operation:je*oe,barrier:ae,workgroup_bandwidth:C,cache_bandwidth:Math.max(de,C,W)};return Object.fromEntries(Object.entries(me).map(([m,b])=>[m,Number(Math.min(Math.max(b,1e-12),1e18).toPrecision(4))]))}#t(e){let r=this.#e.createBuffer({label:"measuring",size:e,usage:140});return this.#s.push(r),r}async#h(e){let n=[...e.matchAll(/var<storage, (read|read_write)>/g)].map(o=>o[1]==="read"?"read-only-storage":"storage").map((o,a)=>({binding:a,visibility:4,buffer:{type:o}})),t=this.#e.createPipelineLayout({bindGroupLayouts:[this.#e.createBindGroupLayout({entries:n})]});return this.#e.createComputePipelineAsync({layout:t,compute:{module:this.#e.createShaderModule({code:e}),entryPoint:"main"}})}#c(e,r){let n=r.map((t,o)=>({binding:o,resource:{buffer:t}}));return{pipeline:e,group:this.#e.createBindGroup({layout:e.getBindGroupLayout(0),entries:n})}}#n(...e){this.#e.queue.writeBuffer(this.#u,0,Uint32Array.from(e))}async#d({pipeline:e,group:r},n,t){j(this.#m);let{queue:o}=this.#e,a=this.#i?this.#l:void 0,u=performance.now(),s=this.#e.createCommandEncoder(),c=s.beginComputePass(a?{timestampWrites:{querySet:a.set,beginningOfPassWriteIndex:0,endOfPassWriteIndex:1}}:{});c.setPipeline(e),c.setBindGroup(0,r);for(let h=0;h<t;h++)c.dispatchWorkgroups(n);c.end(),a&&(s.resolveQuerySet(a.set,0,2,a.ticks,0),s.copyBufferToBuffer(a.ticks,0,a.read,0,16)),o.submit([s.finish()]),await this.#g(o.onSubmittedWorkDone());let d=(performance.now()-u)/1e3;if(!a)return[d,0];await a.read.mapAsync(1);let[f,p]=new BigUint64Array(a.read.getMappedRange());return a.read.unmap(),[d,Number(p-f)/1e9]}async#g(e){let r=!0,n=e.finally(()=>r=!1);n.catch(()=>{});for(let t=0;r&&t<64;t++)this.#e.pushErrorScope("internal"),await this.#e.popErrorScope();await n}async#f(e,r,n){let[t,o]=await this.#d(e,r,n);return o>0?o:t}async#o(e,r,n,t){return this.#n(r),this.#f(e,n,t)}async#b(e,r){let n=performance.now(),[t]=await this.#p(e,r);this.#n(t);for(let[o,a]=[0,1/0];performance.now()-n<500&&o<4;){let u=1/0;for(let s=0;s<3;s++){let[c,d]=await this.#d(e,r,1);this.#i&&=d>0&&d<1.01*c+2e-4,u=Math.min(u,d>0?d:c)}o=u>.99*a?o+1:0,a=Math.min(a,u)}}async#p(e,r){for(let n=16;;n*=4){let t=1/0;for(let o=0;o<2;o++)t=Math.min(t,await this.#o(e,n,r,1));if(t>=S/1e3)return[n,1];if(!(n<ze/2))return[n,Math.min(Ne,Math.ceil(S/1e3/t))]}}async#r(e,r){let n=performance.now(),[t,o]=await this.#p(e,r),a=[t/4,t/2,t].map(s=>s*o),u=[1/0,1/0,1/0];for(let s=0;;s++){for(let p of[0,1,2])u[p]=Math.min(u[p],await this.#o(e,a[p]/o,r,o));let{each:c,straight:d}=ee(a,u),f=performance.now()-n>qe;if(s>=k-1&&d||s>=4*k||f)return c}}async#w(e,r){let[n,t]=await this.#p(e,1),o=async u=>{let[s,c]=[1/0,1/0];for(let d=0;d<3;d++)s=Math.min(s,await this.#o(e,n,1,t)),c=Math.min(c,await this.#o(e,n,u,t));return c<1.5*s},a=1;for(;a<r&&await o(a*2);)a*=2;if(a>=r)return a;for(let u=a*2;u-a>Math.max(1,a/8);){let s=a+Math.floor((u-a)/2);await o(s)?a=s:u=s}return a}async#y(e,r){let n=this.#c(e,[this.#t(r),this.#t(r)]),t=this.#e.limits.maxComputeWorkgroupsPerDimension,o=Math.min(t,Math.ceil(r/16/(this.#a?256*64:256*8))),a=async d=>{let f=1/0;for(let p=0;p<k;p++)f=Math.min(f,await this.#f(n,o,d));return f},u=await a(1),s=Math.max(2,Math.min(32,Math.ceil(S/1e3/u))),c=await a(s);return 2*r*s/(c>u?(c-u)*s/(s-1):c)}async#v(e){let r=[100,200,400],n=[1/0,1/0,1/0];for(let t=0;t<8;t++)for(let o of[0,1,2])n[o]=Math.min(n[o],(await this.#d(e,4,r[o]))[0]);return ee(r,n).each}};function ee(i,e){let r=(a,u)=>(e[u]-e[a])/(i[u]-i[a]),[n,t,o]=[r(0,1),r(1,2),r(0,2)];return o>0?{each:o,straight:n>0&&t>0&&Math.max(n,t)<=$e*Math.min(n,t)}:{each:e[2]/i[2],straight:!1}}export{kr as measure,ee as slope};
