# make install: header, library, pkg-config file, CMake package, tool, man page, completion in shells.
include(CMakePackageConfigHelpers)

install(TARGETS nhood EXPORT nhood-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES include/nhood.h include/nhood_norm_rope.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/nhood)
install(EXPORT nhood-targets NAMESPACE nhood:: DESTINATION ${package_dir})
# Who links a static library links what that needs, too.
set(package_needs "")
set(pc_system_libraries "")
if(nhood_kind STREQUAL STATIC)
    set(package_needs "include(CMakeFindDependencyMacro)\nfind_dependency(Threads)\n")
    set(pc_system_libraries " -lpthread -ldl -lm")
endif()
file(WRITE ${PROJECT_BINARY_DIR}/nhood-config.cmake
    "${package_needs}include(\${CMAKE_CURRENT_LIST_DIR}/nhood-targets.cmake)\n")
install(FILES ${PROJECT_BINARY_DIR}/nhood-config.cmake DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/nhood-config-version.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/nhood-config-version.cmake DESTINATION ${package_dir})

# The installed tree can be moved, and its prefix given as late as `cmake --install`: paths in the pkg-config
# file start from where that file is, unless they were asked for in full.
file(RELATIVE_PATH pc_up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" pc_up "${pc_up}")
set(pc_prefix "\${pcfiledir}/${pc_up}")
foreach(dir libdir includedir)
    string(TOUPPER CMAKE_INSTALL_${dir} variable)
    if(IS_ABSOLUTE "${${variable}}")
        set(pc_${dir} "${${variable}}")
    else()
        set(pc_${dir} "\${prefix}/${${variable}}")
    endif()
endforeach()
configure_file(cmake/nhood.pc.in ${PROJECT_BINARY_DIR}/nhood.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/nhood.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(NHOOD_TOOL)
    install(TARGETS nhood_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    configure_file(tools/nhood/nhood.1.in ${PROJECT_BINARY_DIR}/nhood.1 @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/nhood.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    if(nhood_completions)
        set(completion ${PROJECT_BINARY_DIR}/completion)
        install(FILES ${completion}/nhood.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME nhood)
        install(FILES ${completion}/nhood.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _nhood)
        install(FILES ${completion}/nhood.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
    endif()
endif()
