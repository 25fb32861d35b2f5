// The header in C++: handles in smart pointers, the error text as an exception.
#include <nhood.h>

#include <cstring>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>

static void check(nhood_status status) {
    if (status != NHOOD_OK) throw std::runtime_error(nhood_last_error());
}

int main(int argc, char **argv) try {
    if (argc != 2 || std::strcmp(argv[1], nhood_version()) != 0)
        throw std::runtime_error("version");
    nhood_context *created = nullptr;
    check(nhood_context_create(nullptr, &created));
    std::unique_ptr<nhood_context, decltype(&nhood_context_destroy)> context(created,
                                                                             nhood_context_destroy);
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
