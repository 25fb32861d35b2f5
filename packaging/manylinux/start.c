/* Linked into the tool of a wheel with --wrap=__libc_start_main (scripts/wheel). A program's first call is to this function of
 * glibc, which got a new version in 2.34; this calls the one before. What is new is that it also runs the constructors of the
 * program, of which the tool has none. */

typedef void function(void);
typedef int program(int argc, char **argv, char **environment);

int old_start(program *main, int argc, char **argv, function *init, function *fini,
              function *loader_fini, void *stack_end);
int __wrap___libc_start_main(program *main, int argc, char **argv, function *init, function *fini,
                             function *loader_fini, void *stack_end);

#ifdef __x86_64__
__asm__(".symver old_start, __libc_start_main@GLIBC_2.2.5");
#else
__asm__(".symver old_start, __libc_start_main@GLIBC_2.17");
#endif

int __wrap___libc_start_main(program *main, int argc, char **argv, function *init, function *fini,
                             function *loader_fini, void *stack_end) {
    return old_start(main, argc, argv, init, fini, loader_fini, stack_end);
}
