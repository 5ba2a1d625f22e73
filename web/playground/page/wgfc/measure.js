import{WgfcError as he}from"./index.js";var ge="Chrome and Edge have it since version 113, on Android since 121; Safari since 26; Firefox since 141, first on Windows";function z(n){return new he("no-webgpu",`there is no WebGPU: ${be(n)}. Slower, and without it, \`wgfc/cpu\` runs .onnx models`)}function be({api:n,secure:e,agent:r}){let i=/Linux/.test(r)&&!/Android/.test(r);if(!n&&e===!1)return"browsers give it to secure pages alone: serve this page by https, or from localhost";if(!n)return`this browser has none, or it is turned off. ${ge}${i?". In Chrome for Linux it may need chrome://flags/#enable-unsafe-webgpu":""}`;let t=/Firefox/.test(r)?"about:support":/Chrome|Edg/.test(r)?"chrome://gpu":void 0,o=i?"; Chrome for Linux may need to be started with --enable-unsafe-webgpu --enable-features=Vulkan":"";return`the browser finds no adapter: the GPU or its driver is missing or blocked${t?`, which ${t} tells`:""}. Update the driver, and turn hardware acceleration on${o}`}function N(){let{navigator:n,isSecureContext:e}=globalThis;return{api:!!n?.gpu,secure:e,agent:n?.userAgent??""}}var we={bandwidth:28e11,flops_f32:57344e9,flops_f16:114688e9,flops_matrix:448e12,dispatch_cost:4e-6,cores:128,resident:262144,memory_latency:600,operation:15e-10,barrier:4e-8,workgroup_bandwidth:6e10,cache_bandwidth:3e13,resident_workgroups:1,exchange:15e-7},ye={bandwidth:7e10,flops_f32:24e11,flops_f16:48e11,flops_matrix:48e11,dispatch_cost:8e-6,cores:8,resident:16384,memory_latency:400,operation:3e-9,barrier:8e-8,workgroup_bandwidth:3e10,cache_bandwidth:6e11,resident_workgroups:1,exchange:3e-6},ve={bandwidth:11e8,flops_f32:66e9,flops_f16:13e9,flops_matrix:13e9,dispatch_cost:17e-6,cores:1,resident:64,memory_latency:30,operation:9e-9,barrier:16e-7,workgroup_bandwidth:61e8,cache_bandwidth:62e8,resident_workgroups:1,exchange:5e-6},xe={bandwidth:21e8,flops_f32:125e8,flops_f16:125e8,flops_matrix:125e8,dispatch_cost:17e-6,cores:1,resident:64,memory_latency:17,operation:21e-9,barrier:103e-7,workgroup_bandwidth:18e8,cache_bandwidth:21e8,resident_workgroups:1,exchange:2e-5},Pe={discrete:we,integrated:ye,software:ve,swiftshader:xe},_e=["apple","arm","broadcom","img-tec","imagination","intel","qualcomm","samsung"];function P(n){let{vendor:e="",architecture:r="",description:i=""}=n??{};return/swiftshader/i.test(`${r} ${i}`)?"swiftshader":n?.isFallbackAdapter||/llvmpipe|lavapipe|basic render/i.test(`${r} ${i}`)?"software":e==="nvidia"?"discrete":_e.includes(e)?"integrated":void 0}function _(n){let e=P(n);return e&&Pe[e]}function Se(n){return"adapterInfo"in n?n.adapterInfo:n.info}function q(n){let e=Se(n),r=_(e),{subgroupMinSize:i,subgroupMaxSize:t}=e??{};return{...ke(n.limits,n.features,i===t?i:void 0),...r?{speeds:r}:{}}}function ke(n,e,r){let i=new Set(e),t={f16:i.has("shader-f16")},o=(a,...u)=>{let s=u.filter(c=>c!==void 0);s.length&&(t[a]=Math.min(...s))};return o("max_storage_buffers",n.maxStorageBuffersPerShaderStage),o("max_invocations",n.maxComputeInvocationsPerWorkgroup),o("max_workgroup_bytes",n.maxComputeWorkgroupStorageSize),o("max_binding_bytes",n.maxStorageBufferBindingSize,n.maxBufferSize),o("max_workgroups",n.maxComputeWorkgroupsPerDimension),r&&i.has("subgroups")&&(t.subgroup=r),{version:1,limits:t}}var Ge=async n=>n===!1?void 0:globalThis.caches?.open(n===!0?"wgfc":n);function Ae({vendor:n,architecture:e,device:r,description:i}){let t=[1,n,e,r,i,globalThis.navigator?.userAgent??""];return`https://wgfc.invalid/speeds?${encodeURIComponent(t.join("|"))}`}async function $(n,e,r=!0){await(await Ge(r).catch(()=>{}))?.put(Ae(n),new Response(JSON.stringify(e))).catch(()=>{})}import{WgfcError as ze}from"./index.js";import{WgfcError as Ee}from"./index.js";function Ie(n){return new Ee("aborted","aborted by the caller's signal",{cause:n.reason})}function j(n){if(n?.aborted)throw Ie(n)}async function F(n,e,r=16){let i=!0,t=e.finally(()=>i=!1);t.catch(()=>{});for(let o=0;i&&o<r;o++)n.pushErrorScope("internal"),await n.popErrorScope().catch(()=>{});return t}var V=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
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
`;var H=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
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
`;var Q=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
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
`;var K=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
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
`;var X=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read_write> next: array<u32>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = id.x; i < turns[2]; i += groups.x * 256u) {
        next[i] = (i + turns[3]) & (turns[2] - 1u);
    }
}
`;var Z=`@group(0) @binding(0) var<storage, read_write> data: array<f32, 256>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    data[id.x] += 1.0;
}
`;var Ne=32768,qe=16,S=4,k=4,$e=150,je=1.1,Fe=.65,Ve=64,He=64,ee=["warming up","latencies","arithmetic","cores","caches","memory","dispatches"];async function Ir(n,e={}){let{cache:r=!0,signal:i}=e,t=n&&"queue"in n?n:void 0,o=t?void 0:n??await navigator.gpu?.requestAdapter({powerPreference:"high-performance"});if(!t&&!o)throw z(N());let a=["timestamp-query","shader-f16"].filter(d=>o?.features.has(d)),u=t??await o.requestDevice({requiredFeatures:a}),s=t?t.adapterInfo:o.info;u.pushErrorScope("out-of-memory"),u.pushErrorScope("validation");let c=new G(u,["software","swiftshader"].includes(P(s)??""),i);try{let d=await c.speeds(f=>e.onProgress?.({stage:ee[f],done:f,total:ee.length})),p={...q(t??o),device:Qe(s),speeds:{..._(s),...d}};return r!==!1&&await $(s,p.speeds,r),p}finally{let d=await Promise.all([0,1].map(()=>u.popErrorScope().catch(()=>null)));c.dispose(),t||u.destroy();let p=d.find(f=>f);if(p)throw new ze("validation",`measuring: ${p.message}`)}}function Qe(n){return[n.vendor,n.architecture,n.device,n.description].filter(Boolean).join(" ")}var G=class{#e;#a;#m;#s=[];#u;#l;#i;constructor(e,r,i){if([this.#e,this.#a,this.#m]=[e,r,i],this.#u=this.#t(256),this.#i=e.features.has("timestamp-query"),!this.#i)return;let t=o=>(this.#s.push(o),o);this.#l={set:t(e.createQuerySet({type:"timestamp",count:2})),ticks:t(e.createBuffer({size:16,usage:516})),read:t(e.createBuffer({size:16,usage:9}))}}dispose(){for(let e of this.#s)e.destroy()}async speeds(e){let{limits:r,features:i}=this.#e;e(0);let[t,o]=["f32","f16"].map(m=>V.replaceAll("T(",`${m}(`)),a=[K,t,H,X,Y,Q,J,Z,...i.has("shader-f16")?[`enable f16;
${o}`]:[]],u=await Promise.all(a.map(m=>this.#h(m))),[s,c,d,p,f,y,te,ne,A]=u,h=this.#a,E=Math.min(r.maxStorageBufferBindingSize,r.maxBufferSize),ie=m=>2**Math.floor(Math.log2(Math.min(m,E))),[b,I,U,oe]=[256,256,4096,1<<20].map(m=>this.#t(m)),O=this.#t(ie(h?8<<20:128<<20)),l=(m,...g)=>this.#c(m,[this.#u,...g]);for(let m of[O,U]){let g=m.size/4;this.#n(1,1,g,4127%g|1),await this.#f(l(p,m),h?8:1024,1)}this.#n(1,1,4294967295,0);let v=l(c,b),w=h?64:4096;await this.#g(v,w),e(1);let ae=await this.#r(l(s,b),1)/8,se=await this.#r(l(d,b),1),ue=await this.#r(l(f,O,I),1);e(2);let[ce,M]=[await this.#r(v,1),await this.#r(v,w)],T=w*256*Ve,x=T/M,B=A?T/await this.#r(l(A,b),w):x;e(3);let R=Math.max(1,w*ce/M);this.#n(1,1,0,0);let de=64*await this.#b(l(f,U,I),h?256:16384);e(4);let D=l(y,oe,b),L=h?16:2048,C=65536/await this.#r(D,1),fe=L*65536/await this.#r(D,L);e(5);let W=await this.#w(te,Math.min(E,h?16<<20:128<<20));e(6);let pe=await this.#y(this.#c(ne,[this.#t(1024)])),me=R*256/x,le={bandwidth:W,flops_f32:x,flops_f16:B,flops_matrix:B,dispatch_cost:pe,cores:R,resident:de,memory_latency:ue/me,operation:Fe*ae,barrier:se,workgroup_bandwidth:C,cache_bandwidth:Math.max(fe,C,W)};return Object.fromEntries(Object.entries(le).map(([m,g])=>[m,Number(Math.min(Math.max(g,1e-12),1e18).toPrecision(4))]))}#t(e){let r=this.#e.createBuffer({label:"measuring",size:e,usage:140});return this.#s.push(r),r}async#h(e){let i=[...e.matchAll(/var<storage, (read|read_write)>/g)].map(o=>o[1]==="read"?"read-only-storage":"storage").map((o,a)=>({binding:a,visibility:4,buffer:{type:o}})),t=this.#e.createPipelineLayout({bindGroupLayouts:[this.#e.createBindGroupLayout({entries:i})]});return this.#e.createComputePipelineAsync({layout:t,compute:{module:this.#e.createShaderModule({code:e}),entryPoint:"main"}})}#c(e,r){let i=r.map((t,o)=>({binding:o,resource:{buffer:t}}));return{pipeline:e,group:this.#e.createBindGroup({layout:e.getBindGroupLayout(0),entries:i})}}#n(...e){this.#e.queue.writeBuffer(this.#u,0,Uint32Array.from(e))}async#d({pipeline:e,group:r},i,t){j(this.#m);let{queue:o}=this.#e,a=this.#i?this.#l:void 0,u=performance.now(),s=this.#e.createCommandEncoder(),c=s.beginComputePass(a?{timestampWrites:{querySet:a.set,beginningOfPassWriteIndex:0,endOfPassWriteIndex:1}}:{});c.setPipeline(e),c.setBindGroup(0,r);for(let y=0;y<t;y++)c.dispatchWorkgroups(i);c.end(),a&&(s.resolveQuerySet(a.set,0,2,a.ticks,0),s.copyBufferToBuffer(a.ticks,0,a.read,0,16)),o.submit([s.finish()]),await F(this.#e,o.onSubmittedWorkDone(),He);let d=(performance.now()-u)/1e3;if(!a)return[d,0];await a.read.mapAsync(1);let[p,f]=new BigUint64Array(a.read.getMappedRange());return a.read.unmap(),[d,Number(f-p)/1e9]}async#f(e,r,i){let[t,o]=await this.#d(e,r,i);return o>0?o:t}async#o(e,r,i,t){return this.#n(r),this.#f(e,i,t)}async#g(e,r){let i=performance.now(),[t]=await this.#p(e,r);this.#n(t);for(let[o,a]=[0,1/0];performance.now()-i<500&&o<4;){let u=1/0;for(let s=0;s<3;s++){let[c,d]=await this.#d(e,r,1);this.#i&&=d>0&&d<1.01*c+2e-4,u=Math.min(u,d>0?d:c)}o=u>.99*a?o+1:0,a=Math.min(a,u)}}async#p(e,r){for(let i=16;;i*=4){let t=1/0;for(let o=0;o<2;o++)t=Math.min(t,await this.#o(e,i,r,1));if(t>=S/1e3)return[i,1];if(!(i<Ne/2))return[i,Math.min(qe,Math.ceil(S/1e3/t))]}}async#r(e,r){let i=performance.now(),[t,o]=await this.#p(e,r),a=[t/4,t/2,t].map(s=>s*o),u=[1/0,1/0,1/0];for(let s=0;;s++){for(let f of[0,1,2])u[f]=Math.min(u[f],await this.#o(e,a[f]/o,r,o));let{each:c,straight:d}=re(a,u),p=performance.now()-i>$e;if(s>=k-1&&d||s>=4*k||p)return c}}async#b(e,r){let[i,t]=await this.#p(e,1),o=async u=>{let[s,c]=[1/0,1/0];for(let d=0;d<3;d++)s=Math.min(s,await this.#o(e,i,1,t)),c=Math.min(c,await this.#o(e,i,u,t));return c<1.5*s},a=1;for(;a<r&&await o(a*2);)a*=2;if(a>=r)return a;for(let u=a*2;u-a>Math.max(1,a/8);){let s=a+Math.floor((u-a)/2);await o(s)?a=s:u=s}return a}async#w(e,r){let i=this.#c(e,[this.#t(r),this.#t(r)]),t=this.#e.limits.maxComputeWorkgroupsPerDimension,o=Math.min(t,Math.ceil(r/16/(this.#a?256*64:256*8))),a=async d=>{let p=1/0;for(let f=0;f<k;f++)p=Math.min(p,await this.#f(i,o,d));return p},u=await a(1),s=Math.max(2,Math.min(32,Math.ceil(S/1e3/u))),c=await a(s);return 2*r*s/(c>u?(c-u)*s/(s-1):c)}async#y(e){let r=[100,200,400],i=[1/0,1/0,1/0];for(let t=0;t<8;t++)for(let o of[0,1,2])i[o]=Math.min(i[o],(await this.#d(e,4,r[o]))[0]);return re(r,i).each}};function re(n,e){let r=(a,u)=>(e[u]-e[a])/(n[u]-n[a]),[i,t,o]=[r(0,1),r(1,2),r(0,2)];return o>0?{each:o,straight:i>0&&t>0&&Math.max(i,t)<=je*Math.min(i,t)}:{each:e[2]/n[2],straight:!1}}export{Ir as measure,re as slope};
