// A CPU buffer type "AMX" whose matrix products end the process as soon as a batch has several rows: what gcc 12's
// build of llama.cpp does on a CPU with AMX, made to happen on any CPU. Preloaded, it stands where AMX's stands, first in
// the list of "extra" buffer types that weights are repacked into; single rows are left to the ordinary kernels.
//
// Compiled by .ci/faulty and test_preflight_fault.py against llama.cpp's own headers.

#include <csignal>
#include <dlfcn.h>
#include <unistd.h>

#include "traits.h"

namespace {

// A function of the ggml that is already in the process, under either of its library's names.
template <typename Function> Function * loaded(const char * name) {
    void * found = nullptr;
    for (const char * library : { "libggml-base.so", "libggml-base.so.0", "libggml-cpu.so", "libggml-cpu.so.0" }) {
        void * handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
        found = found || !handle ? found : dlsym(handle, name);
    }
    if (!found) {
        static const char text[] = "faulty_buffer: a ggml function is missing\n";
        (void) !write(STDERR_FILENO, text, sizeof text - 1);
        _exit(3);
    }
    return reinterpret_cast<Function *>(found);
}

ggml_backend_buffer_type_t faulty_type();

// Same virtual functions, in the same order, as ggml::cpu::tensor_traits and ggml::cpu::extra_buffer_type.
struct Traits {
    virtual ~Traits() {}
    virtual bool work_size(int, const ggml_tensor *, size_t &) { return false; }
    virtual bool compute_forward(ggml_compute_params *, ggml_tensor * op) {
        if (op->src[1]->ne[1] > 1) {
            raise(SIGILL);
        }
        return false;
    }
};

struct Extra {
    virtual ~Extra() {}
    virtual bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) {
        return op->op == GGML_OP_MUL_MAT && op->src[1]->type == GGML_TYPE_F32;
    }
    virtual Traits * get_tensor_traits(const ggml_tensor * op) {
        static Traits traits;
        const bool ours = op->op == GGML_OP_MUL_MAT && op->src[0]->buffer && op->src[0]->buffer->buft == faulty_type();
        return ours ? &traits : nullptr;
    }
};

const char * name(ggml_backend_buffer_type_t) { return "AMX"; }

ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, size_t size) {
    auto * plain = loaded<ggml_backend_buffer_type_t(void)>("ggml_backend_cpu_buffer_type");
    auto * make = loaded<ggml_backend_buffer_t(ggml_backend_buffer_type_t, size_t)>(
        "ggml_backend_buft_alloc_buffer");
    ggml_backend_buffer_t buffer = make(plain(), size);
    if (buffer) {
        buffer->buft = type;
    }
    return buffer;
}

size_t alignment(ggml_backend_buffer_type_t) { return 64; }

ggml_backend_buffer_type_t faulty_type() {
    static Extra extra;
    static ggml_backend_buffer_type type = {
        { name, allocate, alignment, nullptr, nullptr, nullptr },
        nullptr,
        &extra,
    };
    return &type;
}

}  // namespace

std::vector<ggml_backend_buffer_type_t> & ggml_backend_cpu_get_extra_buffer_types() {
    // `ggml_backend_cpu_repack_buffer_type`, which C++ mangles: what else a build for x86 has
    static std::vector<ggml_backend_buffer_type_t> types = {
        faulty_type(), loaded<ggml_backend_buffer_type_t(void)>("_Z35ggml_backend_cpu_repack_buffer_typev")()
    };
    return types;
}
