// The header in C++17: handles in smart pointers, the error text as an exception, structs that start with their size.
#include <nhood.h>

#include <cstring>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

static void check(nhood_status status) {
    if (status != NHOOD_OK) throw std::runtime_error(nhood_last_error());
}

template <class Struct> static Struct sized() {
    Struct result{};
    result.struct_size = sizeof result;
    return result;
}

// A window of the whole axis and equal scores: attention is the mean of the values.
static bool attends(nhood_context *context) {
    std::vector<float> q(4), k{1, 2, 3, 4}, v{1, 2, 3, 6}, o(4);
    nhood_problem problem;
    nhood_problem_init(&problem, NHOOD_OP_FWD, NHOOD_DTYPE_F32, 1);
    problem.axis[0].length = problem.axis[0].window = 4;
    problem.dim = problem.dim_v = problem.batch = problem.heads = problem.kv_heads = 1;
    auto options = sized<nhood_plan_options>();
    options.solver = "cpu.fused";
    nhood_plan *made = nullptr;
    check(nhood_plan_create(context, 0, &problem, &options, &made));
    std::unique_ptr<nhood_plan, decltype(&nhood_plan_release)> plan(made, nhood_plan_release);
    auto io = sized<nhood_io>();
    io.data[NHOOD_Q] = q.data();
    io.data[NHOOD_K] = k.data();
    io.data[NHOOD_V] = v.data();
    io.data[NHOOD_O] = o.data();
    io.workspace_bytes = nhood_plan_workspace_bytes(plan.get());
    std::vector<char> workspace(io.workspace_bytes + 64);
    io.workspace = workspace.data();
    std::size_t room = workspace.size();
    std::align(64, io.workspace_bytes, io.workspace, room);
    check(nhood_plan_execute(plan.get(), &io));
    return o[0] > 2.9999f && o[3] < 3.0001f;
}

int main(int argc, char **argv) try {
    if (argc != 2 || std::strcmp(argv[1], nhood_version()) != 0)
        throw std::runtime_error("version");
    auto options = sized<nhood_context_options>();
    options.threads = 1;
    nhood_context *created = nullptr;
    check(nhood_context_create(&options, &created));
    std::unique_ptr<nhood_context, decltype(&nhood_context_destroy)> context(created,
                                                                             nhood_context_destroy);
    if (!attends(context.get())) throw std::runtime_error("not the mean of the values");
    nhood_problem problem;
    check(nhood_problem_parse("bwd:bf16:b1h2d8:6x6:w3x3", &problem));
    nhood_plan *made = nullptr;
    check(nhood_plan_create(context.get(), 0, &problem, nullptr, &made));
    std::unique_ptr<nhood_plan, decltype(&nhood_plan_release)> plan(made, nhood_plan_release);
    if (!std::strstr(nhood_plan_description(plan.get()), "bwd:bf16:b1h2d8:6x6:w3x3"))
        throw std::runtime_error("the description lacks the problem");
    problem.heads = 0;
    try {
        check(nhood_plan_create(context.get(), 0, &problem, nullptr, &made));
    } catch (const std::runtime_error &error) {
        return std::string(error.what()).find("heads = 0") == std::string::npos;
    }
    throw std::runtime_error("heads = 0 was accepted");
} catch (const std::exception &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
