/** WebGPU's flags, which have the same values everywhere. */
export const MAP_READ = 0x1;
export const COPY_SRC = 0x4;
export const COPY_DST = 0x8;
export const UNIFORM = 0x40;
export const STORAGE = 0x80;
export const QUERY_RESOLVE = 0x200;

export const MAP_FOR_READING = 1;
export const COMPUTE_STAGE = 4;
export const TEXTURE_COPY_DST = 0x2;
export const TEXTURE_BINDING = 0x4;
export const RENDER_ATTACHMENT = 0x10;
